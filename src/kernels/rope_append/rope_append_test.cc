#include "kernels/rope_append/rope_append.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numbers>

#include "kernels/common/kv_testing.h"

namespace cachalot {
namespace {

TEST(RopeTable, ExactAtLargePositions) {
  for (int threads : {1, 2}) {
    TestContext ctx(BestIsa(), threads);
    const std::vector<int32_t> positions = {0, 1, 2, 1000000, 2147483647};
    const float inv_freq[] = {1.0f, 0.1f, 1e-4f};
    std::vector<float> cos(15), sin(15);
    RopeTable(ctx, {.positions = positions.data(),
                    .num_tokens = 5,
                    .inv_freq = inv_freq,
                    .half_dim = 3,
                    .mscale = 1.0f,
                    .cos = cos.data(),
                    .sin = sin.data()});
    for (int t = 0; t < 5; ++t) {
      for (int i = 0; i < 3; ++i) {
        const long double angle = static_cast<long double>(positions[t]) * inv_freq[i];
        EXPECT_NEAR(cos[t * 3 + i], std::cos(angle), 1e-7) << positions[t];
        EXPECT_NEAR(sin[t * 3 + i], std::sin(angle), 1e-7) << positions[t];
      }
    }
    EXPECT_NEAR(cos[9], 0.93675213, 1e-7);  // cos(10^6)
    RopeTable(ctx, {.positions = positions.data(),
                    .num_tokens = 1,
                    .inv_freq = inv_freq,
                    .half_dim = 3,
                    .mscale = 1.5f,
                    .cos = cos.data(),
                    .sin = sin.data()});
    EXPECT_EQ(cos[0], 1.5f);
    EXPECT_EQ(sin[0], 0.0f);
  }
}

// A quarter turn of pair 0, none of pair 1: (a, b) becomes (-b, a).
TEST(RopeAppend, HandWorked) {
  for (Isa isa : TestableIsas()) {
    for (RopeStyle style : {RopeStyle::kHalf, RopeStyle::kInterleaved}) {
      TestContext ctx(isa);
      const float cos[] = {0, 1}, sin[] = {1, 0};
      float q[] = {9, 1, 2, 3, 4, 9};
      const float k[] = {1, 2, 3, 4, 5}, v[] = {7, 8};
      TestKv cache({.dtype = DType::kF32, .num_kv_heads = 1, .k_dim = 5, .v_dim = 2, .block_tokens = 4}, {6});
      const SeqSpan span{.slot = 0, .q_begin = 0, .q_len = 1, .kv_len = 6};
      RopeAppend(ctx, {.spans = {&span, 1},
                       .cos = cos,
                       .sin = sin,
                       .style = style,
                       .rope_dim = 4,
                       .q = q,
                       .q_token_stride = 6,
                       .q_head_stride = 6,
                       .num_q_heads = 1,
                       .q_rope_offset = 1,
                       .k = k,
                       .k_token_stride = 5,
                       .k_head_stride = 5,
                       .k_rope_offset = 1,
                       .v = v,
                       .v_token_stride = 2,
                       .v_head_stride = 2,
                       .kv = cache.view()});
      const bool half = style == RopeStyle::kHalf;
      EXPECT_EQ(std::vector<float>(q, q + 6),
                half ? std::vector<float>({9, -3, 2, 1, 4, 9}) : std::vector<float>({9, -2, 1, 3, 4, 9}));
      EXPECT_EQ(cache.Key(0, 0, 5),
                half ? std::vector<float>({1, -4, 3, 2, 5}) : std::vector<float>({1, -3, 2, 4, 5}));
      EXPECT_EQ(cache.Value(0, 0, 5), std::vector<float>({7, 8}));
      EXPECT_TRUE(std::isnan(cache.Key(0, 0, 4)[0]));  // the slot before stays as it was
    }
  }
}

struct Shape {
  KvShape kv;
  RopeStyle style;
  int32_t rope_dim, num_q_heads, q_dim, q_rope_offset, k_rope_offset;
};

// Two sequences, several tokens each; q and all cache bytes afterwards.
std::vector<float> RunOp(Isa isa, int threads, const Shape& s,
                         const std::vector<std::pair<int, int>>& q_and_kv_lens) {
  TestContext ctx(isa, threads);
  TestRng rng(11);
  std::vector<SeqSpan> spans;
  std::vector<int32_t> kv_lens;
  int32_t rows = 0;
  for (auto [q_len, kv_len] : q_and_kv_lens) {
    spans.push_back({static_cast<int32_t>(spans.size()), rows, q_len, kv_len});
    kv_lens.push_back(kv_len);
    rows += q_len;
  }
  TestKv cache(s.kv, kv_lens);
  const bool mla = s.kv.value_in_key;
  const int64_t q_token = s.num_q_heads * s.q_dim + 3, k_head = s.kv.k_dim + 1, v_head = s.kv.v_dim;
  const int64_t k_token = s.kv.num_kv_heads * k_head, v_token = s.kv.num_kv_heads * v_head + 5;
  GuardedBuffer<float> q(rows * q_token);
  rng.FillNormal(q.span());
  const auto k = rng.NormalVector(rows * k_token), v = rng.NormalVector(rows * v_token);
  const auto cos = rng.NormalVector(rows * s.rope_dim / 2), sin = rng.NormalVector(rows * s.rope_dim / 2);
  RopeAppend(ctx, {.spans = spans,
                   .cos = cos.data(),
                   .sin = sin.data(),
                   .style = s.style,
                   .rope_dim = s.rope_dim,
                   .q = q.data(),
                   .q_token_stride = q_token,
                   .q_head_stride = s.q_dim,
                   .num_q_heads = s.num_q_heads,
                   .q_rope_offset = s.q_rope_offset,
                   .k = k.data(),
                   .k_token_stride = k_token,
                   .k_head_stride = k_head,
                   .k_rope_offset = s.k_rope_offset,
                   .v = mla ? nullptr : v.data(),
                   .v_token_stride = v_token,
                   .v_head_stride = v_head,
                   .kv = cache.view()});
  EXPECT_TRUE(q.Intact() && cache.Intact());
  EXPECT_EQ(ctx.counters().generic_calls, 0);
  std::vector<float> all(q.span().begin(), q.span().end());
  const std::vector<float> bytes = cache.AllBytes();
  all.insert(all.end(), bytes.begin(), bytes.end());
  return all;
}

TEST(RopeAppend, EveryVariantHasTheReferencesBits) {
  std::vector<Shape> shapes;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (RopeStyle style : {RopeStyle::kHalf, RopeStyle::kInterleaved}) {
      shapes.push_back({{dtype, 3, 64, 64, 16}, style, 64, 9, 64, 0, 0});
      shapes.push_back({{dtype, 1, 13, 5, 8}, style, 6, 2, 17, 11, 7});
      shapes.push_back({{dtype, 2, 40, 24, 32}, style, 20, 4, 40, 3, 2});
      shapes.push_back({{dtype, 1, 576, 512, 64, true}, style, 64, 16, 192, 128, 512});
      shapes.push_back({{dtype, 2, 8, 8, 8}, style, 0, 2, 8, 0, 0});
    }
  }
  for (const KvFormat& format : KvFormats()) {
    for (const bool mean : {false, true}) {
      const KvScheme& scheme = format.scheme;
      shapes.push_back({{DType::kF32, 3, 64, 64, 16, false, 0, scheme, 0, mean}, RopeStyle::kHalf, 64, 9, 64, 0, 0});
      shapes.push_back({{DType::kF32, 3, 64, 64, 16, false, 0, scheme, 0, mean, 16}, RopeStyle::kHalf, 64, 9, 64, 0, 0});
      shapes.push_back(
          {{DType::kF32, 1, 576, 512, 64, true, 0, scheme, 64, mean, 64}, RopeStyle::kInterleaved, 64, 16, 192, 128, 512});
      shapes.push_back({{DType::kF32, 2, 80, 40, 24, false, 8, scheme, 0, mean}, RopeStyle::kInterleaved, 20, 4, 80, 3, 2});
      shapes.push_back({{DType::kF32, 1, 13, 5, 8, false, 0, scheme, 0, mean}, RopeStyle::kHalf, 6, 2, 17, 11, 7});
      shapes.push_back(
          {{DType::kF32, 1, 576, 512, 64, true, 0, scheme, 64, mean}, RopeStyle::kInterleaved, 64, 16, 192, 128, 512});
      shapes.push_back({{DType::kF32, 2, 256, 128, 1, false, 0, scheme, 0, mean}, RopeStyle::kHalf, 128, 2, 256, 0, 0});
    }
  }
  const std::vector<std::pair<int, int>> lens = {{1, 1}, {7, 20}, {0, 5}, {33, 33}, {1, 129}};
  for (const Shape& s : shapes) {
    const std::vector<float> want = RunOp(Isa::kRef, 1, s, lens);
    for (Isa isa : TestableIsas()) {
      for (int threads : {1, 3}) {
        EXPECT_EQ(FirstBitDifference(RunOp(isa, threads, s, lens), want), "")
            << IsaName(isa) << " " << s.kv.Name() << " k_dim " << s.kv.k_dim << " rope "
            << s.rope_dim;
      }
    }
  }
}

TEST(RopeAppend, ConversionRoundsToNearestEvenAndKeepsSpecialValues) {
  const std::vector<float> values = {1.0f + 0x1p-11f,
                                     1.0f + 3 * 0x1p-11f,
                                     65519.0f,
                                     65520.0f,
                                     1e-7f,
                                     -0.0f,
                                     INFINITY,
                                     -INFINITY,
                                     NAN,
                                     3.4e38f,
                                     0x1p-25f,
                                     1.0f + 0x1p-8f,
                                     1.0f + 3 * 0x1p-9f,
                                     6.0e-8f,
                                     -2.5f,
                                     std::bit_cast<float>(0x7fffffffu)};
  const std::vector<float> zero(8, 0.0f), one(8, 1.0f);
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<std::vector<float>> results;
    for (Isa isa : TestableIsas()) {
      TestContext ctx(isa);
      TestKv cache({dtype, 1, 16, 16, 8}, {1});
      const SeqSpan span{0, 0, 1, 1};
      RopeAppend(ctx, {.spans = {&span, 1},
                       .cos = one.data(),
                       .sin = zero.data(),
                       .rope_dim = 0,
                       .k = values.data(),
                       .v = values.data(),
                       .kv = cache.view()});
      const std::vector<float> key = cache.Key(0, 0, 0);
      EXPECT_TRUE(std::isnan(key[8]));
      EXPECT_TRUE(std::isnan(key[15]));  // rounding must not carry it into the sign
      EXPECT_EQ(key[6], INFINITY);
      EXPECT_EQ(key[7], -INFINITY);
      EXPECT_EQ(std::signbit(key[5]), true);
      if (dtype == DType::kF16) {
        EXPECT_EQ(key[0], 1.0f);
        EXPECT_EQ(key[1], 1.0f + 0x1p-9f);
        EXPECT_EQ(key[2], 65504.0f);
        EXPECT_EQ(key[3], INFINITY);
        EXPECT_EQ(key[10], 0.0f);
      } else {
        EXPECT_EQ(key[11], 1.0f);
        EXPECT_EQ(key[12], 1.0f + 0x1p-6f - 0x1p-7f);
      }
      results.push_back(cache.AllBytes());
    }
    for (const auto& result : results) EXPECT_EQ(FirstBitDifference(result, results[0]), "");
  }
}

// NaN, infinities, huge and tiny values in keys and values: the same bits from every variant, finite ones, and the other
// tokens as they were.
TEST(RopeAppend, QuantisedCodesOfSpecialValues) {
  const float special[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, 0.0f, 5e4f};
  for (const KvFormat& format : KvFormats()) {
    for (size_t which = 0; which < std::size(special); ++which) {
      std::vector<float> k = TestRng(5).NormalVector(64), v = TestRng(6).NormalVector(64);
      k[9] = special[which], v[40] = special[which];
      std::vector<std::vector<float>> results;
      for (Isa isa : TestableIsas()) {
        TestContext ctx(isa);
        TestKv cache({DType::kF32, 1, 64, 64, 16, false, 0, format.scheme}, {3});
        const SeqSpan span{0, 0, 1, 3};
        RopeAppend(ctx, {.spans = {&span, 1}, .rope_dim = 0, .k = k.data(), .v = v.data(), .kv = cache.view()});
        for (float x : cache.Key(0, 0, 2)) EXPECT_TRUE(std::isfinite(x)) << format.name;
        for (float x : cache.Value(0, 0, 2)) EXPECT_TRUE(std::isfinite(x)) << format.name;
        const std::vector<float> value = cache.Value(0, 0, 2);
        if (std::isnan(special[which])) {
          EXPECT_LT(std::fabs(value[40]), 0.3f);  // INT4 has no zero
        }
        results.push_back(cache.AllBytes());
      }
      for (const auto& result : results) EXPECT_EQ(FirstBitDifference(result, results[0]), "") << format.name;
    }
  }
}

}  // namespace
}  // namespace cachalot
