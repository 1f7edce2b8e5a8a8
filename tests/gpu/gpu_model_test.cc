// Whole models on the GPU: the reference's logits, the same tokens however a step is launched, split between CPU and GPU,
// and after faults. Where there is no GPU, one counted skip.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/fault.h"
#include "base/file.h"
#include "golden/golden_harness.h"
#include "gpu_presence.h"
#include "runtime/cuda_runtime.h"

namespace cachalot {
namespace {

// F32 arithmetic in other orders than the reference's.
constexpr float kExactTolerance = 2e-2f;
// 16-bit arithmetic: rows of logits point the same way.
constexpr double kFastCosine = 0.9995;
constexpr double kWholeCosine = 0.99;  // of all positions together, rerouted tokens included
constexpr float kFastMargin = 0.05f;

class GpuModelTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto golden = LoadGoldenCase(GetParam());
    if (golden.status().code() == StatusCode::kNotFound) GTEST_SKIP() << golden.status().message();
    ASSERT_TRUE(golden.ok()) << golden.status().ToString();
    golden_ = std::move(golden).value();
  }

  static Variant Gpu() {
    Variant variant;
    variant.device = "cuda";
    return variant;
  }

  std::unique_ptr<GoldenHarness> Open(const Variant& variant) {
    auto harness = GoldenHarness::Open(golden_, variant);
    EXPECT_TRUE(harness.ok()) << harness.status().ToString();
    return harness.ok() ? std::move(harness).value() : nullptr;
  }
  Outcome Run(GoldenHarness* harness, size_t prompt, int32_t max_tokens, bool all_logits = true) {
    if (harness == nullptr) return {};
    auto run = harness->Generate(golden_, prompt, max_tokens, all_logits);
    EXPECT_TRUE(run.ok()) << run.status().ToString();
    return run.ok() ? std::move(run).value() : Outcome{};
  }
  Outcome Prompt(const Variant& variant) { return Run(Open(variant).get(), golden_.tokens.size(), 0); }
  std::vector<int32_t> Greedy(const Variant& variant) {
    return Run(Open(variant).get(), static_cast<size_t>(golden_.prompt_tokens), static_cast<int32_t>(golden_.greedy.size()), false)
        .generated;
  }

  GoldenCase golden_;
};

TEST_P(GpuModelTest, ExactLogitsMatch) {
  for (const int32_t chunk : {512, 7}) {
    for (const MlaForm form : {MlaForm::kByCost, MlaForm::kAbsorbed, MlaForm::kExpanded}) {
      Variant variant = Gpu();
      variant.chunk = chunk;
      variant.num_others = chunk == 7 ? 3 : 0;
      variant.mla_form = form;
      EXPECT_LE(MaxDifference(Prompt(variant).logits, golden_.logits), kExactTolerance) << "chunk " << chunk;
      if (std::string_view(GetParam()).find("deepseek-v") == std::string_view::npos) break;
    }
  }
}

// Cached tokens are expanded a few at a time: the last piece of one, or shorter than the others, or all of them in one.
TEST_P(GpuModelTest, ExpandedPieceByPiece) {
  if (std::string_view(GetParam()).find("deepseek-v") == std::string_view::npos) return;
  for (const bool exact : {true, false}) {
    Variant variant = Gpu();
    variant.mla_form = MlaForm::kExpanded;
    variant.chunk = 11;
    variant.num_others = 3;
    variant.gpu_exact = exact;
    const Outcome want = Prompt(variant);
    for (const int64_t piece : {1, 10, 16, 4096}) {
      variant.mla_piece_tokens = piece;
      const Outcome got = Prompt(variant);
      if (exact) {
        EXPECT_LE(MaxDifference(got.logits, golden_.logits), kExactTolerance) << "pieces of " << piece;
      } else {
        ASSERT_EQ(got.logits.size(), want.logits.size());
        EXPECT_GE(CosineOf(got.logits.data(), want.logits.data(), want.logits.size()), kWholeCosine) << "pieces of " << piece;
      }
    }
  }
}

// 16-bit rounding may send a token to other experts where its router's choice was near a tie. Steps whose experts got other
// numbers of tokens than in exact arithmetic, and what stands behind them and attends to them, are held to less; they must
// be few.
TEST_P(GpuModelTest, FastLogitsPointTheSameWay) {
  const auto vocab = static_cast<size_t>(golden_.vocab);
  for (const int32_t chunk : {1, 7, 512}) {
    Variant exact = Gpu();
    exact.chunk = chunk;
    exact.gpu_depth = 0;
    Variant fast = exact;
    fast.gpu_exact = false;
    fast.kv_type = "f16";
    const Outcome reference = Prompt(exact);
    const Outcome run = Prompt(fast);
    ASSERT_EQ(run.logits.size(), golden_.logits.size());
    ASSERT_EQ(run.experts.size(), reference.experts.size());
    bool rerouted = false;
    size_t held_to_less = 0;
    for (size_t t = 0; t < golden_.tokens.size(); ++t) {
      const size_t step = t / static_cast<size_t>(chunk);
      rerouted |= run.experts[step] != reference.experts[step];
      held_to_less += rerouted;
      const float* want = golden_.logits.data() + t * vocab;
      const float* got = run.logits.data() + t * vocab;
      const double cosine = CosineOf(got, want, vocab);
      if (rerouted) continue;
      EXPECT_GE(cosine, kFastCosine) << "chunk " << chunk << ", position " << t;
      if (Margin(want, golden_.vocab) > kFastMargin) {
        EXPECT_EQ(ArgMax(got, golden_.vocab), ArgMax(want, golden_.vocab)) << "position " << t;
      }
    }
    if (chunk == 1) {
      EXPECT_LE(held_to_less, golden_.tokens.size() * 3 / 4) << "so much behind a rerouted token";
    }
    // Over all positions a rerouted token weighs little.
    EXPECT_GE(CosineOf(run.logits.data(), golden_.logits.data(), run.logits.size()), kWholeCosine) << "chunk " << chunk;
  }
}

TEST_P(GpuModelTest, GraphsAndDepthGiveTheSameTokens) {
  for (const bool graphs : {true, false}) {
    for (const int32_t depth : {0, 1}) {
      for (const int32_t others : {0, 3}) {
        Variant variant = Gpu();
        variant.gpu_graphs = graphs;
        variant.gpu_depth = depth;
        variant.num_others = others;
        EXPECT_EQ(Greedy(variant), golden_.greedy) << (graphs ? "graphs" : "ops") << ", depth " << depth << ", beside " << others;
      }
    }
  }
  Variant variant = Gpu();
  auto harness = Open(variant);
  ASSERT_NE(harness, nullptr);
  Run(harness.get(), static_cast<size_t>(golden_.prompt_tokens), 8, false);
  EXPECT_GE(harness->bundle().cuda_runtime->num_graph_launches(), 6) << "decode is graph launches";
}

TEST_P(GpuModelTest, SplitsAgree) {
  for (const int32_t layers : {1, 2}) {
    Variant variant = Gpu();
    variant.gpu_layers = layers;
    variant.isa = "ref";
    auto harness = Open(variant);
    ASSERT_NE(harness, nullptr);
    if (harness->bundle().spec.num_layers <= layers) continue;
    EXPECT_EQ(harness->bundle().memory.gpu_layers, layers);
    EXPECT_LE(MaxDifference(Run(harness.get(), golden_.tokens.size(), 0).logits, golden_.logits), kExactTolerance) << layers << " layers";
    EXPECT_EQ(Greedy(variant), golden_.greedy) << layers << " layers";
  }
}

TEST_P(GpuModelTest, DeterministicMeansTheSameBits) {
  for (const bool exact : {true, false}) {
    Variant whole = Gpu();
    whole.deterministic = true;
    whole.gpu_exact = exact;
    const auto prompt = static_cast<size_t>(golden_.prompt_tokens);
    const Outcome want = Run(Open(whole).get(), prompt, 12);
    for (const int32_t chunk : {1, 7, 512}) {
      for (const int32_t others : {0, 4}) {
        Variant variant = whole;
        variant.chunk = chunk;
        variant.num_others = others;
        const Outcome got = Run(Open(variant).get(), prompt, 12);
        EXPECT_EQ(got.logits, want.logits) << (exact ? "F32" : "fast") << ", chunk " << chunk << ", beside " << others;
        EXPECT_EQ(got.generated_logits, want.generated_logits) << (exact ? "F32" : "fast") << ", chunk " << chunk << ", beside " << others;
      }
    }
  }
}

// A fault ends the requests of its step; those that come later are answered as if nothing had been.
TEST_P(GpuModelTest, RecoversFromFaults) {
  for (const bool lost : {false, true}) {
    auto harness = Open(Gpu());
    ASSERT_NE(harness, nullptr);
    const auto prompt = static_cast<size_t>(golden_.prompt_tokens);
    const auto tokens = static_cast<int32_t>(golden_.greedy.size());
    {
      ScopedFault fault("device.op", 3);
      ScopedFault gone("device.rebuild", lost ? 0 : 1 << 20);
      auto failed = harness->Generate(golden_, prompt, tokens, false);
      ASSERT_FALSE(failed.ok());
      EXPECT_EQ(failed.status().code(), StatusCode::kDeviceError) << failed.status().ToString();
    }
    EXPECT_EQ(Run(harness.get(), prompt, tokens, false).generated, golden_.greedy) << (lost ? "rebuilt" : "kept");
  }
}

// Of the differences, relative to the size of `want`.
double RelativeRms(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    difference += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    size += double{want[i]} * want[i];
  }
  return std::sqrt(difference / size);
}

// The middle one of the positions' differences: a token that a router sends elsewhere does not move it.
double MiddleRms(const std::vector<float>& got, const std::vector<float>& want, size_t vocab) {
  std::vector<double> rows;
  for (size_t at = 0; at + vocab <= std::min(got.size(), want.size()); at += vocab) {
    rows.push_back(RelativeRms({got.begin() + static_cast<std::ptrdiff_t>(at), got.begin() + static_cast<std::ptrdiff_t>(at + vocab)},
                               {want.begin() + static_cast<std::ptrdiff_t>(at), want.begin() + static_cast<std::ptrdiff_t>(at + vocab)}));
  }
  if (rows.empty()) return NAN;
  std::nth_element(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(rows.size() / 2), rows.end());
  return rows[rows.size() / 2];
}

// The same codes: what is left is where a rounding falls the other way, less than half of what the codes cost; without sinks
// (SinksGiveTheCpusLogits), and in chunks as long, since MLA's absorbed form rounds its query for integer codes and the expanded one does not
// (which costs as much as k8v8 does). Where there are experts, in the middle of all positions: between the CPU's own reference and AVX2
// kernels that middle is up to 0.27 of the cost with FP8 weights and 0.04 without, but all positions together up to twice the cost. In
// 16-bit arithmetic the logits point the same way.
TEST_P(GpuModelTest, QuantisedCachesGiveTheCpusLogits) {
  const std::string_view model = GetParam();
  const auto named = [&](std::string_view part) { return model.find(part) != std::string_view::npos; };
  const bool experts = named("deepseek") || named("moe") || named("mixtral");
  const size_t vocab = golden_.logits.size() / golden_.tokens.size();
  for (const char* type : {"k8v8", "k6v8", "fp8", "k6v4", "k4v4"}) {
    for (const int32_t chunk : {512, 7}) {
      SCOPED_TRACE(testing::Message() << type << ", chunk " << chunk);
      Variant cpu;
      cpu.kv_type = type;
      cpu.kv_sinks = 0;
      cpu.chunk = chunk;
      const Outcome want = Prompt(cpu);
      Variant gpu = Gpu();
      gpu.kv_type = type;
      gpu.chunk = chunk;
      const Outcome exact = Prompt(gpu);
      EXPECT_LT(MiddleRms(exact.logits, want.logits, vocab), 0.5 * MiddleRms(want.logits, golden_.logits, vocab));
      if (!experts) {
        EXPECT_LT(RelativeRms(exact.logits, want.logits), 0.5 * RelativeRms(want.logits, golden_.logits));
      }
      gpu.gpu_exact = false;
      const Outcome fast = Prompt(gpu);
      EXPECT_GE(CosineOf(fast.logits.data(), want.logits.data(), want.logits.size()), experts ? 0.8 : kWholeCosine) << "fast";
    }
  }
}

// So too with the first block of each sequence exact, under the coarsest codes; and that changes the logits.
TEST_P(GpuModelTest, SinksGiveTheCpusLogits) {
  if (std::string_view(GetParam()) == "mistral") return;  // every layer has a window, and so no codes
  const size_t vocab = golden_.logits.size() / golden_.tokens.size();
  for (const int32_t chunk : {512, 7}) {
    SCOPED_TRACE(testing::Message() << "chunk " << chunk);
    Variant cpu;
    cpu.kv_type = "k4v4";
    cpu.kv_sinks = 16;
    cpu.chunk = chunk;
    const Outcome want = Prompt(cpu);
    Variant gpu = Gpu();
    gpu.kv_type = "k4v4";
    gpu.chunk = chunk;
    gpu.num_others = 3;
    gpu.kv_sinks = 16;
    const Outcome exact = Prompt(gpu);
    const double cost = MiddleRms(want.logits, golden_.logits, vocab);
    EXPECT_LT(MiddleRms(exact.logits, want.logits, vocab), 0.5 * cost);
    gpu.gpu_exact = false;
    const Outcome fast = Prompt(gpu);
    EXPECT_GE(CosineOf(fast.logits.data(), want.logits.data(), want.logits.size()), 0.8) << "fast";
    gpu.kv_sinks = 0;
    EXPECT_NE(Prompt(gpu).logits, fast.logits) << "without sinks";
  }
}

// Blocks of codes are shared, swapped out and in, and written chunk by chunk: the same tokens.
TEST_P(GpuModelTest, QuantisedBlocksMove) {
  Variant alone = Gpu();
  alone.kv_type = "k6v8";
  alone.deterministic = true;
  const std::vector<int32_t> want = Greedy(alone);
  Variant chunks = alone;
  chunks.chunk = 7;
  EXPECT_EQ(Greedy(chunks), want);
  for (const bool swap : {false, true}) {
    Variant little = alone;
    little.num_others = 3;
    little.swap = swap;
    little.kv_tokens = static_cast<int64_t>(golden_.prompt_tokens + golden_.greedy.size()) + 48;
    EXPECT_EQ(Greedy(little), want) << (swap ? "swapped" : "computed again");
  }
  Variant shared = alone;
  shared.prefix_cache = true;
  auto harness = Open(shared);
  for (int i = 0; i < 2; ++i) {
    const Outcome run = Run(harness.get(), static_cast<size_t>(golden_.prompt_tokens), static_cast<int32_t>(golden_.greedy.size()), false);
    EXPECT_EQ(run.generated, want) << (i == 0 ? "fresh" : "cached");
  }
}

// Too little KV memory for all: sequences are displaced and come back, and nobody's tokens change.
TEST_P(GpuModelTest, PreemptionChangesNothing) {
  for (const bool swap : {false, true}) {
    Variant variant = Gpu();
    variant.num_others = 3;
    variant.swap = swap;
    variant.kv_tokens = static_cast<int64_t>(golden_.prompt_tokens + golden_.greedy.size()) + 48;
    auto harness = Open(variant);
    ASSERT_NE(harness, nullptr);
    const Outcome run = Run(harness.get(), static_cast<size_t>(golden_.prompt_tokens), static_cast<int32_t>(golden_.greedy.size()), false);
    EXPECT_EQ(run.generated, golden_.greedy) << (swap ? "swapped" : "computed again");
  }
}

// What a prompt left in the cache, and what several choices share, give the tokens that a fresh start gives.
TEST_P(GpuModelTest, SharedBlocksChangeNothing) {
  Variant variant = Gpu();
  variant.num_others = 3;
  variant.prefix_cache = true;
  auto harness = Open(variant);
  ASSERT_NE(harness, nullptr);
  Request request;
  request.prompt_ids.assign(golden_.tokens.begin(), golden_.tokens.begin() + golden_.prompt_tokens);
  request.max_tokens = static_cast<int32_t>(golden_.greedy.size());
  request.n = 3;
  for (const bool again : {false, true}) {
    std::vector<std::vector<int32_t>> choices(3);
    int32_t cached = 0;
    ASSERT_TRUE(harness->engine().Submit(request, [&](const RequestOutput& output) {
      auto& choice = choices[static_cast<size_t>(output.choice)];
      choice.insert(choice.end(), output.token_ids.begin(), output.token_ids.end());
      cached = std::max(cached, output.num_cached_tokens);
    }).ok());
    ASSERT_TRUE(harness->engine().RunUntilIdle().ok());
    for (const auto& choice : choices) EXPECT_EQ(choice, golden_.greedy) << (again ? "cached" : "fresh");
    // A sliding window keeps no beginning that could be shared here.
    const bool windowed = std::string_view(GetParam()) == "mistral";
    if (again && golden_.prompt_tokens > 32 && !windowed) {
      EXPECT_GT(cached, 0);
    }
  }
}

// What loading and running take is what was planned: the driver's own part is planned generously, nothing else may differ.
TEST_P(GpuModelTest, MemoryStaysWithinThePlan) {
  const CudaBackend* backend = *LoadCudaBackend();
  int64_t free_before = 0, free_ready = 0, free_after = 0, total = 0;
  Run(Open(Gpu()).get(), static_cast<size_t>(golden_.prompt_tokens), 4, false);  // the driver loads its kernels
  ASSERT_EQ(backend->memory_info(&free_before, &total), nullptr);
  Variant variant = Gpu();
  variant.num_others = 3;
  auto harness = Open(variant);
  ASSERT_NE(harness, nullptr);
  ASSERT_EQ(backend->memory_info(&free_ready, &total), nullptr);
  const MemoryPlan& plan = harness->bundle().memory;
  constexpr int64_t kPages = int64_t{16} << 20;  // allocations are rounded up to pages of 2 MB
  EXPECT_LE(free_before - free_ready, plan.gpu_bytes() - plan.gpu_graph_bytes + kPages);
  Run(harness.get(), static_cast<size_t>(golden_.prompt_tokens), 20, false);
  ASSERT_EQ(backend->memory_info(&free_after, &total), nullptr);
  EXPECT_LE(free_ready - free_after, plan.gpu_graph_bytes) << "graphs";
  RecordProperty("graph_bytes", std::to_string(free_ready - free_after));
  RecordProperty("graphs", std::to_string(harness->bundle().cuda_runtime->num_graphs()));
  std::printf("%s: %d graphs took %.2f MiB\n", GetParam(), harness->bundle().cuda_runtime->num_graphs(),
              static_cast<double>(free_ready - free_after) / (1 << 20));
}

std::string CaseName(const testing::TestParamInfo<const char*>& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, GpuModelTest,
                         testing::Values("llama", "llama3-rope", "mistral", "qwen2", "qwen3", "deepseek-v2-lite",
                                         "deepseek-v2", "deepseek-v3", "deepseek-v3-fp8", "qwen3-moe", "mixtral"),
                         CaseName);

// A request's sampling on the device against the same on the CPU: penalties, biases, log-probabilities, stops.
class GpuSamplingTest : public GpuModelTest {};

TEST_P(GpuSamplingTest, IsTheCpus) {
  struct Drawn {
    std::vector<int32_t> ids;
    std::vector<float> logprobs;
    std::vector<float> prompt_logprobs;
    std::vector<int32_t> top;
    FinishReason reason = FinishReason::kError;
  };
  const auto draw = [&](const Variant& variant, const Request& request) {
    Drawn drawn;
    auto harness = Open(variant);
    if (harness == nullptr) return drawn;
    auto id = harness->engine().Submit(request, [&](const RequestOutput& output) {
      drawn.ids.insert(drawn.ids.end(), output.token_ids.begin(), output.token_ids.end());
      drawn.logprobs.insert(drawn.logprobs.end(), output.logprobs.begin(), output.logprobs.end());
      drawn.prompt_logprobs.insert(drawn.prompt_logprobs.end(), output.prompt_logprobs.begin(), output.prompt_logprobs.end());
      for (const auto& list : output.top_logprobs) {
        for (const TopLogprob& entry : list) drawn.top.push_back(entry.token_id);
      }
      if (output.finished) drawn.reason = output.finish_reason;
    });
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    EXPECT_TRUE(harness->engine().RunUntilIdle().ok());
    return drawn;
  };
  Request plain;
  plain.prompt_ids.assign(golden_.tokens.begin(), golden_.tokens.begin() + 12);
  plain.max_tokens = 20;
  plain.num_top_logprobs = 3;
  Request penalties = plain;
  penalties.sampling.repetition_penalty = 1.3f;
  penalties.sampling.frequency_penalty = 0.4f;
  penalties.sampling.presence_penalty = 0.2f;
  penalties.sampling.logit_bias = {{golden_.greedy[0], -100.0f}, {5, 2.0f}};
  Request random = plain;
  random.sampling.temperature = 0.9f;
  random.sampling.top_k = 40;
  random.sampling.top_p = 0.9f;
  random.sampling.seed = 42;
  Request stops = plain;
  stops.stop_ids = {golden_.greedy[3]};
  stops.prompt_logprobs = true;
  Variant cpu;
  cpu.isa = "ref";
  for (const Request& request : {plain, penalties, random, stops}) {
    const Drawn want = draw(cpu, request);
    const Drawn got = draw(Gpu(), request);
    EXPECT_EQ(got.ids, want.ids);
    EXPECT_EQ(got.top, want.top);
    EXPECT_EQ(got.reason, want.reason);
    ASSERT_EQ(got.logprobs.size(), want.logprobs.size());
    for (size_t i = 0; i < want.logprobs.size(); ++i) EXPECT_NEAR(got.logprobs[i], want.logprobs[i], 1e-3f);
    ASSERT_EQ(got.prompt_logprobs.size(), want.prompt_logprobs.size());
    for (size_t i = 0; i < want.prompt_logprobs.size(); ++i) EXPECT_NEAR(got.prompt_logprobs[i], want.prompt_logprobs[i], 1e-3f);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GpuSamplingTest, testing::Values("llama", "deepseek-v3"), CaseName);

}  // namespace
}  // namespace cachalot

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  auto backend = cachalot::LoadCudaBackend();
  int devices = 0;
  const bool found = backend.ok() && (*backend)->device_count(&devices) == nullptr && devices > 0;
  return cachalot::RunGpuTests(found ? "" : backend.ok() ? "there is no GPU" : backend.status().message());
}
