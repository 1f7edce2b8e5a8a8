// Every model of ours against the reference's logits: by both instruction sets, whole and in chunks, alone and beside
// other sequences, with the same greedy tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "golden/golden_harness.h"
#include "support/hf_to_gguf.h"

namespace cachalot {
namespace {

// Sanitized builds are ten times slower and look for other faults: one variant of each kind is enough there.
#ifdef CACHALOT_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

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
    auto harness = GoldenHarness::Open(golden_, variant);
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
