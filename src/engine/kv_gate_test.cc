#include "engine/kv_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/available_memory.h"
#include "engine/logit_kl.h"
#include "engine/model_bundle.h"

namespace cachalot {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

ModelOptions Dummy(const std::string& type, float max_kl, const std::string& fallback) {
  ModelOptions options;
  options.dummy = "tiny-deepseek-v3";
  options.dummy_layers = 2;
  options.num_threads = 2;
  options.context = 128;
  options.kv.type = type;
  options.kv_gate = {.max_kl = max_kl, .fallback = fallback};
  return options;
}

TEST(KvGate, RefusesOrFallsBack) {
  const auto passed = OpenModel(Dummy("k4v4", 100, "refuse"));
  ASSERT_TRUE(passed.ok()) << passed.status().message();
  EXPECT_TRUE(passed->kv.types.any_quantised());
  const auto refused = OpenModel(Dummy("k4v4", 1e-9f, "refuse")).status();
  EXPECT_EQ(refused.code(), StatusCode::kExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("--kv-max-kl allows 1e-09"));
  EXPECT_THAT(refused.message(), HasSubstr("--kv-type k4v4: a mean KL divergence of 0."));
  EXPECT_THAT(refused.message(), HasSubstr("--kv-fallback auto"));
  // Nothing quantised passes: in the end there is F16, with the memory that it takes.
  const auto plain = OpenModel(Dummy("k4v4", 1e-9f, "auto"));
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  EXPECT_FALSE(plain->kv.types.any_quantised());
  EXPECT_GT(plain->memory.kv_bytes, passed->memory.kv_bytes);
  EXPECT_EQ(plain->memory.kv_bytes, PlanModel(Dummy("f16", 0, "refuse"))->memory.kv_bytes);
  EXPECT_EQ(plain->runtime->info().kv_identity, OpenModel(Dummy("f16", 0, "refuse"))->runtime->info().kv_identity);
  const auto worse = OpenModel(Dummy("k4v4", 1e-9f, "k6v4")).status();
  EXPECT_THAT(worse.message(), HasSubstr("k6v4: a mean KL"));
  EXPECT_THAT(worse.message(), HasSubstr("nothing is left"));
}

TEST(KvGate, AFallbackMustFitIntoMemory) {
  ModelOptions options = Dummy("k4v4", 1e-9f, "auto");
  options.kv_tokens = 1 << 20;
  const auto bytes = [&](const char* type) {
    ModelOptions of = options;
    of.kv.type = type;
    return static_cast<double>(PlanModel(of)->memory.kv_bytes);
  };
  const double f16 = bytes("f16");
  ASSERT_LT(bytes("k4v4"), f16);
  options.kv_tokens = static_cast<int64_t>((1 << 20) * (2.0 * static_cast<double>(AvailableMemoryBytes()) / f16));  // twice what there is
  EXPECT_THAT(OpenModel(options).status().message(), AllOf(HasSubstr("--kv-type k4v4 costs more; a KV cache of"), HasSubstr("are available")));
}

TEST(KvGate, ATextThatIsTooShort) {
  ModelOptions options = Dummy("k4v4", 1, "refuse");
  options.context = 32;
  EXPECT_THAT(OpenModel(options).status().message(), HasSubstr("32 tokens"));
  options.context = 128;
  options.kv_gate.text = "/dev/null/none";
  EXPECT_THAT(OpenModel(options).status().message(), HasSubstr("/dev/null/none"));
}

TEST(KvGate, Fallbacks) {
  EXPECT_THAT(KvFallbacks("k4v4"), ElementsAre("k6v4", "k6v8", "k8v8", "f16"));
  EXPECT_THAT(KvFallbacks("k8v8"), ElementsAre("f16"));
  EXPECT_THAT(KvFallbacks("fp8"), ElementsAre("k8v8", "f16"));
}

TEST(LogitKl, OfKnownDistributions) {
  const float p[] = {std::log(0.5f), std::log(0.5f)}, q[] = {std::log(0.25f) + 3, std::log(0.75f) + 3};
  EXPECT_NEAR(LogitKl(p, q), 0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3), 1e-6);
  EXPECT_NEAR(LogitKl(p, p), 0, 1e-9);
}

}  // namespace
}  // namespace cachalot
