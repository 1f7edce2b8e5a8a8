// What a step costs: each weight is read once however many sequences it serves, only chosen experts are read, and a step
// in steady state allocates nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/engine.h"
#include "engine/model_bundle.h"
#include "kernels/matmul/packed_matrix.h"
#include "runtime/runtime.h"
#include "support/heap_hook.h"

namespace cachalot {
namespace {

struct Opened {
  ModelBundle bundle;
  std::unique_ptr<Engine> engine;
};

Opened Open(const std::string& dummy, int32_t layers, const std::string& type, int32_t max_seqs,
            const std::string& isa = "auto", int32_t num_threads = 2) {
  ModelOptions options;
  options.dummy = dummy;
  options.dummy_layers = layers;
  options.dummy_type = type;
  options.isa = isa;
  options.num_threads = num_threads;
  options.max_seqs = max_seqs;
  options.context = 256;
  options.max_step_tokens = 128;
  options.max_logit_rows = 16;
  Opened opened;
  auto bundle = OpenModel(options);
  EXPECT_TRUE(bundle.ok()) << bundle.status().ToString();
  opened.bundle = std::move(bundle).value();
  auto engine = Engine::Create(opened.bundle.runtime.get(), opened.bundle.tokenizer.get(), {});
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  opened.engine = std::move(engine).value();
  return opened;
}

void Submit(Engine* engine, int32_t num_seqs, int32_t max_tokens) {
  for (int32_t i = 0; i < num_seqs; ++i) {
    Request request;
    for (int32_t t = 0; t < 5 + i; ++t) request.prompt_ids.push_back(100 + 7 * i + t);
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    auto id = engine->Submit(std::move(request), [](const RequestOutput&) {});
    ASSERT_TRUE(id.ok()) << id.status().ToString();
  }
}

// Weight bytes that one decode step reads.
int64_t DecodeStepBytes(Opened* opened, int32_t num_seqs) {
  Submit(opened->engine.get(), num_seqs, 8);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(opened->engine->Step().ok());
  const int64_t before = opened->bundle.cpu_runtime->counters().weight_bytes;
  EXPECT_TRUE(opened->engine->Step().ok());
  const int64_t bytes = opened->bundle.cpu_runtime->counters().weight_bytes - before;
  EXPECT_TRUE(opened->engine->RunUntilIdle().ok());
  return bytes;
}

TEST(Step, ReadsEachWeightOnceForAnyBatch) {
  for (const char* type : {"Q8_0", "Q4_0", "BF16"}) {
    Opened opened = Open("smollm2-135m", 1, type, 8);
    const ModelSpec& spec = opened.bundle.spec;
    // All that is owned is matrices, read once (the embedding as the head), and the norms' vectors.
    const int64_t vectors = int64_t{2 * spec.num_layers + 1} * spec.hidden_size * 4;
    const int64_t matrices = opened.bundle.memory.weight_bytes - vectors;
    EXPECT_EQ(DecodeStepBytes(&opened, 1), matrices) << type;
    EXPECT_EQ(DecodeStepBytes(&opened, 8), matrices) << type;
  }
}

TEST(Step, ReadsOnlyTheChosenExperts) {
  Opened opened = Open("deepseek-v2-lite", 2, "Q8_0", 1);
  const ModelSpec& spec = opened.bundle.spec;
  const PackOptions pack = {.isa = opened.bundle.cpu_runtime->options().isa};
  const MoeSpec& moe = spec.moe;
  const int64_t expert = PackedBytes(DType::kQ8_0, 2 * moe.intermediate, spec.hidden_size, pack) +
                         PackedBytes(DType::kQ8_0, spec.hidden_size, moe.intermediate, pack);
  const AttentionSpec& attention = spec.attention;
  const int64_t vectors = 4 * (int64_t{2 * spec.num_layers + 1} * spec.hidden_size + int64_t{spec.num_layers} * attention.kv_lora_rank);
  // The expanded form's kv_b is not read by a decode step, nor is the embedding table as a whole.
  const int64_t kv_b = spec.num_layers * PackedBytes(DType::kF16, int64_t{attention.num_q_heads} * (attention.nope_dim + attention.v_dim),
                                                     attention.kv_lora_rank, pack);
  const int64_t table = DTypeBytes(DType::kQ8_0, int64_t{spec.vocab_size} * spec.hidden_size);
  const int64_t all = opened.bundle.memory.weight_bytes - vectors - kv_b - table;
  EXPECT_EQ(DecodeStepBytes(&opened, 1), all - (moe.num_experts - moe.top_k) * expert);
  // One prompt of 5 tokens reaches between top_k and 5 * top_k experts, the decode steps after it top_k each.
  const auto& ratios = opened.engine->stats().moe_activation_ratio;
  ASSERT_EQ(ratios.size(), 1u);
  const auto steps = static_cast<double>(opened.engine->stats().steps);
  const double share = static_cast<double>(moe.top_k) / moe.num_experts;
  EXPECT_GE(ratios[0], share - 1e-9);
  EXPECT_LE(ratios[0], share * (1 + 4 / steps) + 1e-9);
}

// Where only a prompt's end is asked for, the last layer's FFN is computed for that row alone: fewer bytes where that is
// experts, the same bits in any case.
TEST(Step, WhatIsNotAskedForChangesNothing) {
  for (const char* dummy : {"tiny-llama", "tiny-deepseek-v3", "tiny-qwen3-moe"}) {
    Opened opened = Open(dummy, 0, "Q8_0", 2);
    const auto logprobs = [&](bool every_position, int32_t chunk_of_others) {
      if (chunk_of_others > 0) Submit(opened.engine.get(), 1, chunk_of_others);
      std::vector<float> got;
      Request request;
      for (int32_t t = 0; t < 40; ++t) request.prompt_ids.push_back(50 + 3 * t);
      request.max_tokens = 4;
      request.ignore_eos = true;
      request.num_top_logprobs = 0;
      request.prompt_logprobs = every_position;
      request.cache_salt = every_position ? "every" : "last";
      EXPECT_TRUE(opened.engine->Submit(std::move(request), [&](const RequestOutput& output) {
        got.insert(got.end(), output.logprobs.begin(), output.logprobs.end());
      }).ok());
      EXPECT_TRUE(opened.engine->RunUntilIdle().ok());
      EXPECT_EQ(got.size(), 4u);
      return got;
    };
    const std::vector<float> want = logprobs(true, 0);
    EXPECT_EQ(logprobs(false, 0), want) << dummy;
    EXPECT_EQ(logprobs(false, 6), want) << dummy;
  }
}

// Scratch grows with the threads: the plan must know how many there are.
TEST(Step, ManyThreadsFindTheirScratchPlanned) {
  for (const char* dummy : {"tiny-llama", "tiny-deepseek-v3", "tiny-qwen3-moe"}) {
    Opened opened = Open(dummy, 0, "Q8_0", 2, "auto", /*num_threads=*/99);
    EXPECT_GT(DecodeStepBytes(&opened, 2), 0) << dummy;
  }
}

TEST(Step, AllocatesNothingInSteadyState) {
  for (const char* isa : {"ref", "auto"}) {
    Opened opened = Open("smollm2-135m", 1, "Q8_0", 4, isa);
    Submit(opened.engine.get(), 4, 100);
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(opened.engine->Step().ok());
    HeapCounter heap;
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(opened.engine->Step().ok());
    EXPECT_EQ(heap.count(), 0) << isa;
  }
}

// What a schedule may not change: the tokens, in any batch, of any chunks, with and without what others left in the
// prefix cache, and however often a sequence was preempted.
struct Schedule {
  const char* what;
  int32_t chunk = 512;
  int32_t max_seqs = 8;
  int64_t kv_tokens = 0;  // 0: enough
  bool prefix_caching = true;
  PreemptionMode preemption = PreemptionMode::kRecompute;
};

struct Generated {
  std::vector<std::vector<int32_t>> tokens;
  EngineStats stats;
};

Generated Generate(const std::string& dummy, const std::string& kv_type, const Schedule& schedule) {
  ModelOptions options;
  options.dummy = dummy;
  options.kv.type = kv_type;
  if (kv_type == "k6v8") options.kv.layers = "1=f16";  // groups of both kinds
  options.num_threads = 2;
  options.max_seqs = schedule.max_seqs;
  options.context = 128;
  options.kv_tokens = schedule.kv_tokens;
  options.swap_tokens = schedule.kv_tokens;
  options.deterministic = true;
  auto bundle = OpenModel(options);
  EXPECT_TRUE(bundle.ok()) << bundle.status().ToString();
  EngineOptions engine_options;
  engine_options.prefill_chunk = schedule.chunk;
  engine_options.enable_prefix_caching = schedule.prefix_caching;
  engine_options.preemption = schedule.preemption;
  auto engine = Engine::Create(bundle->runtime.get(), nullptr, engine_options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  Generated generated;
  // Pairs begin alike; one comes when the other has left its blocks behind.
  for (int32_t wave = 0; wave < 2; ++wave) {
    for (int32_t i = 0; i < 6; ++i) {
      const size_t at = generated.tokens.size();
      generated.tokens.emplace_back();
      Request request;
      for (int32_t t = 0; t < 40; ++t) request.prompt_ids.push_back(3 + (i * 31 + t * 7) % 200);
      for (int32_t t = 0; t < 5 + i; ++t) request.prompt_ids.push_back(3 + (wave * 50 + t * 11) % 200);
      request.max_tokens = 30;
      request.ignore_eos = true;
      if (i % 2 == 1) request.sampling = {.temperature = 0.8f, .repetition_penalty = 1.1f, .seed = 7, .logit_bias = {}, .suppressed_ids = {}};
      EXPECT_TRUE((*engine)->Submit(std::move(request), [&generated, at](const RequestOutput& output) {
        auto& tokens = generated.tokens[at];
        tokens.insert(tokens.end(), output.token_ids.begin(), output.token_ids.end());
      }).ok());
    }
    EXPECT_TRUE((*engine)->RunUntilIdle().ok());
  }
  generated.stats = (*engine)->stats();
  return generated;
}

class ScheduleTest : public testing::TestWithParam<const char*> {};  // by KV type

TEST_P(ScheduleTest, NoScheduleChangesAToken) {
  for (const char* dummy : {"tiny-llama", "tiny-deepseek-v3"}) {
    const Generated alone = Generate(dummy, GetParam(), {.what = "alone", .max_seqs = 1, .prefix_caching = false});
    // Where sinks lie elsewhere, the blocks go further.
    const int64_t few = std::string_view(GetParam()) == "f16" ? 200 : 144;
    const Schedule schedules[] = {
        {.what = "batched", .prefix_caching = false},
        {.what = "prefix cache"},
        {.what = "chunks of 16", .chunk = 16},
        {.what = "chunks of 16, no prefix cache", .chunk = 16, .prefix_caching = false},
        {.what = "recomputed", .kv_tokens = few, .prefix_caching = false},
        {.what = "recomputed from the prefix cache", .chunk = 16, .kv_tokens = few},
        {.what = "swapped", .kv_tokens = few, .prefix_caching = false, .preemption = PreemptionMode::kSwap},
        {.what = "swapped, prefix cache", .chunk = 16, .kv_tokens = few, .preemption = PreemptionMode::kSwap},
    };
    for (const Schedule& schedule : schedules) {
      SCOPED_TRACE(std::string(dummy) + ", " + schedule.what);
      const Generated got = Generate(dummy, GetParam(), schedule);
      EXPECT_EQ(got.tokens, alone.tokens);
      const bool tight = schedule.kv_tokens > 0;
      EXPECT_EQ(got.stats.cache_hit_tokens > 0, schedule.prefix_caching);
      EXPECT_EQ(got.stats.recompute_preemptions > 0, tight && schedule.preemption == PreemptionMode::kRecompute);
      EXPECT_EQ(got.stats.swap_preemptions > 0, tight && schedule.preemption == PreemptionMode::kSwap);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(KvTypes, ScheduleTest, testing::Values("f16", "k6v8", "k4v4", "fp8"),
                         [](const auto& test) { return std::string(test.param); });

std::vector<float> PromptLogits(Opened* opened) {
  std::vector<float> logits;
  Request request;
  request.prompt_ids = {3, 1, 4, 1, 5};
  request.all_logits = true;
  EXPECT_TRUE(opened->engine->Submit(std::move(request), [&](const RequestOutput& output) {
    logits.insert(logits.end(), output.logits.begin(), output.logits.end());
  }).ok());
  EXPECT_TRUE(opened->engine->RunUntilIdle().ok());
  return logits;
}

TEST(Step, TheChosenInstructionSetIsTheOneThatRuns) {
  if (BestIsa() < Isa::kAvx2) GTEST_SKIP() << "this CPU has no AVX2";
  Opened ref = Open("smollm2-135m", 1, "Q8_0", 1, "ref");
  Opened fast = Open("smollm2-135m", 1, "Q8_0", 1, "avx2");
  const auto want = PromptLogits(&ref);
  const auto got = PromptLogits(&fast);
  ASSERT_EQ(got.size(), want.size());
  // The SIMD path rounds activations to 8 bits, the reference does not: near, and not the same.
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) worst = std::max<double>(worst, std::abs(got[i] - want[i]));
  EXPECT_GT(worst, 1e-5);
  EXPECT_LT(worst, 0.2);
  EXPECT_EQ(fast.bundle.cpu_runtime->counters().generic_calls, 0) << "an op fell back to its reference";
}

}  // namespace
}  // namespace cachalot
