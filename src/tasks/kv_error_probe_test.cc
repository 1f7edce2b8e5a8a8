#include "tasks/kv_error_probe.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/common/kv_testing.h"

namespace cachalot {
namespace {

struct Shape {
  int32_t num_q_heads, num_kv_heads, k_dim, v_dim;
  bool latent;
};

// A prompt of kLen tokens through plain attention over an F32 cache, with keys around a mean.
void RunAttention(const Shape& s, int32_t length, float key_mean) {
  TestKv cache({DType::kF32, s.num_kv_heads, s.k_dim, s.v_dim, 16, s.latent}, {length});
  for (int32_t head = 0; head < s.num_kv_heads; ++head) {
    for (int32_t t = 0; t < length; ++t) {
      auto key = TestRng(static_cast<uint64_t>(head * 1000 + t)).NormalVector(s.k_dim);
      key[2] += key_mean;
      cache.Write(0, head, t, key, TestRng(static_cast<uint64_t>(head * 1000 + t + 77777)).NormalVector(s.v_dim));
    }
  }
  const auto q = TestRng(8).NormalVector(int64_t{length} * s.num_q_heads * s.k_dim, 1.5f);
  std::vector<float> out(static_cast<size_t>(int64_t{length} * s.num_q_heads * s.v_dim));
  TestContext ctx(BestIsa(), 2);
  const SeqSpan span{0, 0, length, length};
  Attention(ctx, {.spans = {&span, 1},
                  .q = q.data(),
                  .q_token_stride = int64_t{s.num_q_heads} * s.k_dim,
                  .q_head_stride = s.k_dim,
                  .num_q_heads = s.num_q_heads,
                  .scale = 1 / std::sqrt(static_cast<float>(s.k_dim)),
                  .kv = cache.view(),
                  .out = out.data(),
                  .out_token_stride = int64_t{s.num_q_heads} * s.v_dim,
                  .out_head_stride = s.v_dim});
}

// The prediction has no constant that was fitted; on bell-shaped keys and values it is within a few per cent.
TEST(KvErrorProbe, PredictsWhatIsMeasured) {
  for (const KvFormat& format : KvFormats()) {
    for (const Shape& s : {Shape{8, 2, 64, 64, false}, Shape{8, 1, 72, 64, true}}) {
      for (const int32_t sinks : {0, 16}) {
        KvErrorProbe probe({.schemes = {format.scheme}, .means = {}, .sample_every = 10, .sink_tokens = sinks});
        {
          const ScopedAttentionTap tap(&probe);
          RunAttention(s, 160, 0.0f);
        }
        ASSERT_EQ(probe.layers().size(), 1u);
        const KvErrorProbe::Layer& layer = probe.layers()[0];
        EXPECT_EQ(layer.outputs, 16 * 8);
        // The square; with a latent the errors of key and value are the same ones, which the model leaves out.
        EXPECT_NEAR(std::sqrt(layer.predicted() / layer.measured), 1.0, 0.15)
            << format.name << " latent " << s.latent << " sinks " << sinks;
        EXPECT_GT(layer.output, 0);
      }
    }
  }
}

TEST(KeyMeans, AreThoseOfTheKeys) {
  KeyMeans means;
  const Shape s{4, 2, 32, 32, false};
  {
    const ScopedAttentionTap tap(&means);
    RunAttention(s, 200, 6.0f);
  }
  ASSERT_EQ(means.layers().size(), 1u);
  const KeyMeans::Layer& layer = means.layers()[0];
  EXPECT_EQ(layer.tokens, 200);
  EXPECT_EQ(layer.heads, 2);
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t i = 0; i < 32; ++i) {
      EXPECT_NEAR(layer.sums[static_cast<size_t>(h * 32 + i)] / 200, i == 2 ? 6.0 : 0.0, 0.35);
    }
  }
  EXPECT_NEAR(KeyMeans::MeanShare(layer), 36.0 / (36 + 32), 0.03);
}

}  // namespace
}  // namespace cachalot
