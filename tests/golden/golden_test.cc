// Every model of ours against the reference's logits: by both instruction sets, whole and in chunks, alone and beside
// other sequences, with the same greedy tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/engine.h"
#include "engine/model_bundle.h"
#include "golden/golden_case.h"
#include "runtime/runtime.h"
#include "support/hf_to_gguf.h"

namespace cachalot {
namespace {

// The one place for how far logits may be from the reference's (whose deviation is about 1.4).
constexpr float kReferenceTolerance = 2e-3f;
constexpr float kOptimisedTolerance = 2e-2f;

// Sanitized builds are ten times slower and look for other faults: one variant of each kind is enough there.
#ifdef CACHALOT_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

struct Outcome {
  std::vector<float> logits;       // of the prompt, [tokens, vocab]
  std::vector<int32_t> generated;
  std::vector<float> generated_logits;
};

struct Variant {
  std::string isa = "ref";
  int32_t chunk = 512;
  int32_t num_others = 0;          // sequences beside it, of other lengths
  bool deterministic = false;
  MlaForm mla_form = MlaForm::kByCost;
};

class Harness {
 public:
  static Result<std::unique_ptr<Harness>> Open(const GoldenCase& golden, const Variant& variant) {
    auto harness = std::make_unique<Harness>();
    ModelOptions options;
    options.path = golden.folder;
    options.isa = variant.isa;
    options.kv_type = "f32";
    options.num_threads = 2;
    options.max_seqs = 1 + variant.num_others;
    options.max_step_tokens = 512;
    options.max_logit_rows = 512;
    options.deterministic = variant.deterministic;
    options.mla_form = variant.mla_form;
    ASSIGN_OR_RETURN(harness->bundle_, OpenModel(options));
    EngineOptions engine_options;
    engine_options.prefill_chunk = variant.chunk;
    ASSIGN_OR_RETURN(harness->engine_, Engine::Create(harness->bundle_.runtime.get(), nullptr, engine_options));
    harness->num_others_ = variant.num_others;
    return harness;
  }

  Result<Outcome> Generate(const GoldenCase& golden, size_t prompt_tokens, int32_t max_tokens) {
    Outcome run;
    Status error;
    Request request;
    request.prompt_ids.assign(golden.tokens.begin(), golden.tokens.begin() + static_cast<int64_t>(prompt_tokens));
    request.max_tokens = max_tokens;
    request.all_logits = true;
    const size_t prompt_logits = prompt_tokens * static_cast<size_t>(golden.vocab);
    for (int32_t i = 0; i < num_others_; ++i) {
      Request other;
      const int64_t begin = 3 * (i + 1);
      other.prompt_ids.assign(golden.tokens.begin() + begin, golden.tokens.begin() + begin + 5 + 11 * i);
      other.max_tokens = 20;
      ASSIGN_OR_RETURN(const uint64_t id, engine_->Submit(std::move(other), [](const RequestOutput&) {}));
      (void)id;
    }
    ASSIGN_OR_RETURN(const uint64_t id, engine_->Submit(std::move(request), [&](const RequestOutput& output) {
      for (float logit : output.logits) {
        (run.logits.size() < prompt_logits ? run.logits : run.generated_logits).push_back(logit);
      }
      run.generated.insert(run.generated.end(), output.token_ids.begin(), output.token_ids.end());
      if (output.finished && output.finish_reason == FinishReason::kError) error = output.error;
    }));
    (void)id;
    RETURN_IF_ERROR(engine_->RunUntilIdle());
    if (!error.ok()) return error;
    return run;
  }

 private:
  ModelBundle bundle_;
  std::unique_ptr<Engine> engine_;
  int32_t num_others_ = 0;
};

float MaxDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= worst)) worst = difference;  // a NaN is the worst of all, and stays
    if (std::isnan(difference)) return difference;
  }
  return worst;
}

int32_t ArgMax(const float* logits, int32_t vocab) {
  return static_cast<int32_t>(std::max_element(logits, logits + vocab) - logits);
}

// The gap between the two best logits.
float Margin(const float* logits, int32_t vocab) {
  const int32_t best = ArgMax(logits, vocab);
  float second = -INFINITY;
  for (int32_t i = 0; i < vocab; ++i) {
    if (i != best) second = std::max(second, logits[i]);
  }
  return logits[best] - second;
}

class GoldenTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto golden = LoadGoldenCase(GetParam());
    if (golden.status().code() == StatusCode::kNotFound) GTEST_SKIP() << golden.status().message();
    ASSERT_TRUE(golden.ok()) << golden.status().ToString();
    golden_ = std::move(golden).value();
  }

  Outcome Prompt(const Variant& variant) { return Generate(variant, golden_.tokens.size(), 0); }

  Outcome Generate(const Variant& variant, size_t prompt_tokens, int32_t max_tokens) {
    auto harness = Harness::Open(golden_, variant);
    EXPECT_TRUE(harness.ok()) << harness.status().ToString();
    if (!harness.ok()) return {};
    auto run = (*harness)->Generate(golden_, prompt_tokens, max_tokens);
    EXPECT_TRUE(run.ok()) << run.status().ToString();
    return run.ok() ? std::move(run).value() : Outcome{};
  }

  GoldenCase golden_;
};

using LatentAttentionTest = GoldenTest;

TEST_P(GoldenTest, ReferencePathMatches) {
  for (int32_t chunk : {512, 1, 7, 33, 64}) {
    const int32_t others = chunk == 7 ? 3 : 0;
    const Outcome run = Prompt({.isa = "ref", .chunk = chunk, .num_others = others});
    EXPECT_LE(MaxDifference(run.logits, golden_.logits), kReferenceTolerance) << "chunk " << chunk << ", beside " << others;
    if (kSanitized) break;
  }
}

TEST_P(GoldenTest, ReferencePathGivesTheSameGreedyTokens) {
  const Outcome run = Generate({.isa = "ref"}, static_cast<size_t>(golden_.prompt_tokens), static_cast<int32_t>(golden_.greedy.size()));
  EXPECT_EQ(run.generated, golden_.greedy);
}

TEST_P(GoldenTest, OptimisedPathMatches) {
  if (BestIsa() < Isa::kAvx2) GTEST_SKIP() << "this CPU has no AVX2";
  for (int32_t chunk : {512, 1, 7, 33, 64}) {
    for (int32_t others : {0, 3}) {
      if (kSanitized && (chunk != 33 || others == 0)) continue;
      const Outcome run = Prompt({.isa = "avx2", .chunk = chunk, .num_others = others});
      ASSERT_EQ(run.logits.size(), golden_.logits.size());
      EXPECT_LE(MaxDifference(run.logits, golden_.logits), kOptimisedTolerance) << "chunk " << chunk << ", beside " << others;
      for (size_t t = 0; t < golden_.tokens.size(); ++t) {
        const float* want = golden_.logits.data() + t * golden_.vocab;
        if (Margin(want, golden_.vocab) <= 2 * kOptimisedTolerance) continue;
        EXPECT_EQ(ArgMax(run.logits.data() + t * golden_.vocab, golden_.vocab), ArgMax(want, golden_.vocab)) << "position " << t;
      }
    }
  }
}

TEST_P(LatentAttentionTest, AbsorbedAndExpandedMatch) {
  for (const char* isa : {"ref", "avx2"}) {
    if (*isa == 'a' && BestIsa() < Isa::kAvx2) continue;
    const float tolerance = *isa == 'r' ? kReferenceTolerance : kOptimisedTolerance;
    for (MlaForm form : {MlaForm::kAbsorbed, MlaForm::kExpanded}) {
      for (int32_t chunk : {512, 33}) {
        if (kSanitized && chunk != 33) continue;
        const Outcome run = Prompt({.isa = isa, .chunk = chunk, .mla_form = form});
        EXPECT_LE(MaxDifference(run.logits, golden_.logits), tolerance)
            << isa << ", chunk " << chunk << (form == MlaForm::kAbsorbed ? ", absorbed" : ", expanded");
      }
    }
  }
}

TEST_P(GoldenTest, DeterministicMeansTheSameBits) {
  for (const char* isa : {"ref", "avx2"}) {
    if (*isa == 'a' && BestIsa() < Isa::kAvx2) continue;
    const Variant whole = {.isa = isa, .chunk = 512, .num_others = 0, .deterministic = true};
    const Outcome want = Prompt(whole);
    for (int32_t chunk : {1, 7, 64, 512}) {
      for (int32_t others : {0, 3}) {
        if ((*isa == 'r' || kSanitized) && (chunk != 7 || others == 0)) continue;
        const Outcome got = Prompt({.isa = isa, .chunk = chunk, .num_others = others, .deterministic = true});
        EXPECT_EQ(got.logits, want.logits) << isa << ", chunk " << chunk << ", beside " << others;
      }
    }
    const auto prompt = static_cast<size_t>(golden_.prompt_tokens);
    const Outcome alone = Generate(whole, prompt, 16);
    Variant beside = whole;
    beside.num_others = 4;
    const Outcome batched = Generate(beside, prompt, 16);
    EXPECT_EQ(alone.generated, batched.generated) << isa;
    EXPECT_EQ(alone.generated_logits, batched.generated_logits) << isa;
  }
}

// The same weights as the GGUF files that llama.cpp's converter makes, DeepSeek's in all three historic layouts.
class GgufTest : public GoldenTest {
 protected:
  void Check(GgufMlaLayout layout, const char* name) {
    const std::string path = testing::TempDir() + "/" + GetParam() + "-" + name + ".gguf";
    const Status written = WriteHfAsGguf(golden_.folder, layout, path);
    ASSERT_TRUE(written.ok()) << written.ToString();
    GoldenCase in_gguf = golden_;
    in_gguf.folder = path;
    std::swap(golden_, in_gguf);
    for (const char* isa : {"ref", "avx2"}) {
      if (*isa == 'a' && BestIsa() < Isa::kAvx2) continue;
      const Outcome run = Prompt({.isa = isa});
      EXPECT_LE(MaxDifference(run.logits, golden_.logits), *isa == 'r' ? kReferenceTolerance : kOptimisedTolerance)
          << isa << ", " << name;
    }
    std::swap(golden_, in_gguf);
    std::remove(path.c_str());
  }
};

TEST_P(GgufTest, SameLogits) { Check(GgufMlaLayout::kMainline, "mainline"); }

using GgufLayoutsTest = GgufTest;

TEST_P(GgufLayoutsTest, SameLogits) {
  Check(GgufMlaLayout::kHybrid, "hybrid");
  Check(GgufMlaLayout::kLegacy, "legacy");
}

std::string CaseName(const testing::TestParamInfo<const char*>& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest,
                         testing::Values("llama", "llama3-rope", "mistral", "qwen2", "qwen3", "deepseek-v2-lite",
                                         "deepseek-v2", "deepseek-v3", "deepseek-v3-fp8", "qwen3-moe", "mixtral"),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Models, GgufTest,
                         testing::Values("llama", "llama3-rope", "mistral", "qwen2", "qwen3", "deepseek-v2-lite",
                                         "deepseek-v2", "deepseek-v3", "deepseek-v3-fp8", "qwen3-moe", "mixtral"),
                         CaseName);
// (deepseek-v2 has both a query latent and V2-Lite's mscale, which no legacy file can say.)
INSTANTIATE_TEST_SUITE_P(Models, GgufLayoutsTest, testing::Values("deepseek-v2-lite", "deepseek-v3", "deepseek-v3-fp8"),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Models, LatentAttentionTest,
                         testing::Values("deepseek-v2-lite", "deepseek-v2", "deepseek-v3", "deepseek-v3-fp8"), CaseName);

}  // namespace
}  // namespace cachalot
