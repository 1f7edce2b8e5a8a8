#include "engine/kv_types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/kv_store.h"

namespace cachalot {
namespace {

using testing::HasSubstr;

ModelSpec SmallSpec() {
  ModelSpec spec;
  spec.num_layers = 6;
  spec.layers.resize(6);
  spec.layers[2].window = 128;
  spec.attention.num_q_heads = 4;
  spec.attention.num_kv_heads = 2;
  spec.attention.head_dim = 64;
  return spec;
}

TEST(KvTypes, LayersGroupByType) {
  const ModelSpec spec = SmallSpec();
  const auto choice = ChooseKv({.type = "k6v8", .layers = "0-1=bf16,5=k8v8"}, spec);
  ASSERT_TRUE(choice.ok()) << choice.status().message();
  EXPECT_EQ(choice->plain, DType::kBF16);
  const auto groups = KvGroups(spec, false, 0, choice->types);
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].layers, (std::vector<int32_t>{0, 1}));
  EXPECT_FALSE(groups[0].scheme.quantised());
  EXPECT_EQ(groups[1].layers, (std::vector<int32_t>{2}));  // a window is exempt
  EXPECT_FALSE(groups[1].scheme.quantised());
  EXPECT_EQ(groups[2].layers, (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(groups[2].scheme, FindKvFormat("k6v8")->scheme);
  EXPECT_EQ(groups[3].scheme, FindKvFormat("k8v8")->scheme);
  // Bytes: 2 layers, 2 heads, 16 tokens of 48 + 2 and 64 + 2 bytes.
  EXPECT_EQ(groups[2].BlockBytes(choice->plain, 16), 2 * 2 * 16 * (48 + 2 + 64 + 2));
  EXPECT_EQ(groups[0].BlockBytes(choice->plain, 16), 2 * 2 * 16 * 2 * 64 * 2);
}

// Codes without a window have their sinks in a group of their own, of blocks that end where theirs begin.
TEST(KvTypes, SinksAreAGroupInFrontOfTheCodes) {
  const ModelSpec spec = SmallSpec();
  KvTypes types = ChooseKv({.type = "k6v8", .layers = "2=k6v8,5=f16"}, spec)->types;
  types.sink_tokens = SinkTokens(4, 16);
  const auto groups = KvGroups(spec, false, 0, types);
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].layers, (std::vector<int32_t>{0, 1, 3, 4}));
  EXPECT_EQ(groups[0].first_token, 16);
  EXPECT_EQ(groups[0].sink_group, 1);
  EXPECT_EQ(groups[1].layers, groups[0].layers);
  EXPECT_EQ(groups[1].end_token, 16);
  EXPECT_EQ(groups[1].scheme, SinkScheme(groups[0].scheme));
  EXPECT_EQ(groups[2].first_token, 0) << "a window has none";
  EXPECT_EQ(groups[3].first_token, 0);
  EXPECT_EQ(SinkTokens(0, 16), 0);
  EXPECT_EQ(SinkTokens(17, 16), 32);
  EXPECT_EQ(SinkTokens(1, 12), 24);
}

TEST(KvTypes, NamesTellAllThatTheBitsDependOn) {
  const ModelSpec spec = SmallSpec();
  std::vector<std::string> names;
  const KvOptions all[] = {{.type = "f16"},
                           {.type = "bf16"},
                           {.type = "k6v8"},
                           {.type = "k8v8"},
                           {.type = "fp8"},
                           {.type = "k6v4"},
                           {.type = "k4v4"},
                           {.type = "k6v8", .rotate = "off"},
                           {.type = "k6v8", .group = "32"},
                           {.type = "k6v8", .layers = "1=f16"},
                           {.type = "k6v8", .layers = "3=f16"},
                           {.type = "k6v8", .layers = "3=k8v8"}};
  for (const KvOptions& options : all) {
    const auto choice = ChooseKv(options, spec);
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    for (const std::string& other : names) EXPECT_NE(choice->Name(), other);
    names.push_back(choice->Name());
  }
  KvChoice means = ChooseKv({.type = "k6v8"}, spec).value();
  means.key_means = {{1.0f}};
  KvChoice sinks = ChooseKv({.type = "k6v8"}, spec).value();
  sinks.types.sink_tokens = 16;
  EXPECT_NE(sinks.Name(), names[2]);
  EXPECT_NE(means.Name(), names[2]);
  EXPECT_EQ(ChooseKv({}, spec)->Name(), "F16");
}

TEST(KvTypes, WhatDoesNotFitIsRefused) {
  const auto error = [](const KvOptions& options) { return ChooseKv(options, SmallSpec()).status().message(); };
  EXPECT_THAT(error({.type = "k5v5"}), HasSubstr("k6v8"));
  EXPECT_THAT(error({.type = "k6v8", .layers = "6=f16"}), HasSubstr("0 to 5"));
  EXPECT_THAT(error({.type = "k6v8", .layers = "3-1=f16"}), HasSubstr("3-1"));
  EXPECT_THAT(error({.type = "k6v8", .layers = "x=f16"}), HasSubstr("no layer"));
  EXPECT_THAT(error({.type = "k6v8", .layers = "1"}), HasSubstr("no type"));
  EXPECT_THAT(error({.type = "k6v8", .layers = "1=q9"}), HasSubstr("q9"));
  EXPECT_THAT(error({.type = "k6v8", .layers = "1=f16,2=bf16"}), HasSubstr("one type"));
  EXPECT_THAT(error({.type = "k6v8", .group = "48"}), HasSubstr("48"));
  EXPECT_THAT(error({.type = "k6v8", .rotate = "maybe"}), HasSubstr("maybe"));
  EXPECT_THAT(error({.type = "f16", .calibration = "x"}), HasSubstr("quantised"));
  EXPECT_FALSE(ChooseKv({.type = "k6v8", .calibration = "/dev/null/none"}, SmallSpec()).ok());
  ModelSpec wide = SmallSpec();
  wide.attention.head_dim = 2048;
  EXPECT_THAT(ChooseKv({.type = "k6v8"}, wide).status().message(), HasSubstr("2048"));
}

// How many tokens fit into the same memory, by the plan that the engine keeps to: scales, planes' alignment,
// tables and sinks included.
class KvCapacity : public ::testing::Test {
 protected:
  static ModelSpec Llama8B() {
    ModelSpec spec;
    spec.num_layers = 32;
    spec.layers.resize(32);
    spec.attention.num_q_heads = 32;
    spec.attention.num_kv_heads = 8;
    spec.attention.head_dim = 128;
    return spec;
  }
  static ModelSpec V2Lite() {
    ModelSpec spec;
    spec.num_layers = 27;
    spec.layers.resize(27);
    spec.attention.kind = AttentionKind::kMla;
    spec.attention.num_q_heads = 16;
    spec.attention.kv_lora_rank = 512;
    spec.attention.nope_dim = 128;
    spec.attention.rope_dim = 64;
    spec.attention.v_dim = 128;
    return spec;
  }
  static int64_t TokensIn(int64_t bytes, const ModelSpec& spec, const KvOptions& kv, bool on_gpu) {
    KvChoice choice = ChooseKv(kv, spec).value();
    if (!on_gpu && choice.types.any_quantised()) choice.types.sink_tokens = SinkTokens(4, 16);
    const auto groups = KvGroups(spec, false, on_gpu ? spec.num_layers : 0, choice.types);
    KvStoreOptions options{.dtype = choice.plain, .block_tokens = 16, .max_seqs = 64, .max_context = 8192};
    int64_t fits = 0;
    for (int64_t step = int64_t{1} << 24; step >= options.block_tokens; step /= 2) {
      options.capacity_tokens = fits + step;
      if (KvStore::PlanBytes(groups, options, on_gpu ? DeviceType::kCuda : DeviceType::kCpu) <= bytes)
        fits += step;
    }
    return fits;
  }
  static double OfBf16(const ModelSpec& spec, const KvOptions& kv, bool on_gpu) {
    const int64_t bytes = int64_t{40} << 30;
    const auto plain = static_cast<double>(TokensIn(bytes, spec, {.type = "bf16"}, on_gpu));
    return static_cast<double>(TokensIn(bytes, spec, kv, on_gpu)) / plain;
  }
};

TEST_F(KvCapacity, SixBitKeysAndEightBitValues) {
  EXPECT_EQ(TokensIn(int64_t{40} << 30, Llama8B(), {.type = "bf16"}, true) / 8192,
            39);  // sequences of 8,192 tokens
  EXPECT_EQ(TokensIn(int64_t{40} << 30, Llama8B(), {.type = "k6v8"}, true) / 8192, 89);
  EXPECT_GE(OfBf16(Llama8B(), {.type = "k6v8"}, true), 2.2);
  EXPECT_NEAR(OfBf16(Llama8B(), {.type = "k6v8"}, true), 512.0 / 228, 0.01);
  // Of 576 values the 64 rotary ones stay as they are: 1,152 bytes to 520.
  EXPECT_NEAR(OfBf16(V2Lite(), {.type = "k6v8"}, true), 1152.0 / 520, 0.01);
  EXPECT_GE(OfBf16(V2Lite(), {.type = "k6v8"}, true), 2.2);
  // On the CPU the sinks take their share.
  EXPECT_NEAR(OfBf16(Llama8B(), {.type = "k6v8"}, false), 2.16, 0.02);
}

TEST(KvTypes, PairsOfLlamaCpp) {
  EXPECT_EQ(KvTypeOfPair("q8_0", "q8_0").value(), "k8v8");
  EXPECT_EQ(KvTypeOfPair("q4_0", "q4_0").value(), "k4v4");
  EXPECT_EQ(KvTypeOfPair("f16", "f16").value(), "f16");
  EXPECT_THAT(KvTypeOfPair("q8_0", "f16").status().message(), HasSubstr("no counterpart"));
}

}  // namespace
}  // namespace cachalot
