// Models with a quantised KV cache: how far their logits are from the F32 cache's, and that neither chunks nor company
// change a bit of them. Random weights are harder on a cache than trained ones, and where they route to experts, a choice
// that falls otherwise is another output altogether: what a cache costs a real model is measured by `kv report`.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "golden/golden_harness.h"

namespace cachalot {
namespace {

#ifdef CACHALOT_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Of the logits' differences, relative to their deviation: what was measured, with half as much again.
struct Limit {
  const char* type;
  double dense;
  double experts;
};
constexpr Limit kLimits[] = {
    {"k8v8", 0.08, 0.23}, {"k6v8", 0.13, 0.5}, {"fp8", 0.14, 0.54}, {"k6v4", 0.28, 0.5}, {"k4v4", 0.44, 0.95}};

double RelativeRms(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    difference += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    size += double{want[i]} * want[i];
  }
  return std::sqrt(difference / size);
}

class QuantisedKvTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto golden = LoadGoldenCase(GetParam());
    if (golden.status().code() == StatusCode::kNotFound) GTEST_SKIP() << golden.status().message();
    ASSERT_TRUE(golden.ok()) << golden.status().ToString();
    golden_ = std::move(golden).value();
  }
  Outcome Run(const Variant& variant, int32_t max_tokens = 0) {
    auto harness = GoldenHarness::Open(golden_, variant);
    EXPECT_TRUE(harness.ok()) << harness.status().ToString();
    if (!harness.ok()) return {};
    const size_t prompt = max_tokens == 0 ? golden_.tokens.size() : static_cast<size_t>(golden_.prompt_tokens);
    auto run = (*harness)->Generate(golden_, prompt, max_tokens);
    EXPECT_TRUE(run.ok()) << run.status().ToString();
    return run.ok() ? std::move(run).value() : Outcome{};
  }
  GoldenCase golden_;
};

TEST_P(QuantisedKvTest, LogitsAreNear) {
  const std::string_view model = GetParam();
  const bool experts = model != "llama" && model != "mistral";
  for (const Limit& limit : kLimits) {
    for (const char* isa : {"ref", "avx2"}) {
      if (*isa == 'a' && BestIsa() < Isa::kAvx2) continue;
      if (*isa == 'r' && (kSanitized || std::string_view(limit.type) != "k6v8")) continue;
      const Outcome run = Run({.isa = isa, .kv_type = limit.type});
      const double rms = RelativeRms(run.logits, golden_.logits);
      EXPECT_LT(rms, experts ? limit.experts : limit.dense) << limit.type << " " << isa;
      EXPECT_GT(rms, 1e-5) << limit.type << " is not quantised";
    }
  }
}

TEST_P(QuantisedKvTest, ChunksAndCompanyDoNotChangeBits) {
  if (BestIsa() < Isa::kAvx2) GTEST_SKIP() << "this CPU has no AVX2";
  for (const Limit& limit : kLimits) {
    if (kSanitized && std::string_view(limit.type) != "k6v8") continue;
    const Variant whole = {.isa = "avx2", .deterministic = true, .kv_type = limit.type};
    const Outcome want = Run(whole);
    for (const int32_t chunk : {1, 33}) {
      Variant cut = whole;
      cut.chunk = chunk;
      cut.num_others = chunk == 1 ? 0 : 3;
      EXPECT_EQ(Run(cut).logits, want.logits) << limit.type << " chunk " << chunk;
    }
    const Outcome alone = Run(whole, 16);
    Variant beside = whole;
    beside.num_others = 4;
    const Outcome batched = Run(beside, 16);
    EXPECT_EQ(alone.generated, batched.generated) << limit.type;
    EXPECT_EQ(alone.generated_logits, batched.generated_logits) << limit.type;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, QuantisedKvTest, testing::Values("llama", "mistral", "qwen3-moe", "deepseek-v2-lite", "deepseek-v3"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace cachalot
