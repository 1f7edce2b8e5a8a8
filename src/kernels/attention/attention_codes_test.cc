// Attention over a quantised cache against plain attention over the values that it stands for, in F32: what is left is
// the rounding of the query.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/common/kv_testing.h"

namespace cachalot {
namespace {

struct Case {
  int32_t num_q_heads, num_kv_heads, k_dim, v_dim, exact_dim;
  int32_t kv_len;
};

std::vector<float> Attend(Isa isa, const Case& c, const PagedKv& kv, const std::vector<float>& q, int32_t q_len) {
  std::vector<float> out(static_cast<size_t>(int64_t{q_len} * c.num_q_heads * c.v_dim));
  TestContext ctx(isa, 2);
  const SeqSpan span{0, 0, q_len, c.kv_len};
  Attention(ctx, {.spans = {&span, 1},
                  .q = q.data(),
                  .q_token_stride = int64_t{c.num_q_heads} * c.k_dim,
                  .q_head_stride = c.k_dim,
                  .num_q_heads = c.num_q_heads,
                  .scale = 1 / std::sqrt(static_cast<float>(c.k_dim)),
                  .kv = kv,
                  .out = out.data(),
                  .out_token_stride = int64_t{c.num_q_heads} * c.v_dim,
                  .out_head_stride = c.v_dim});
  return out;
}

KvShape ShapeOf(const Case& c, const KvScheme& scheme, bool mean, int32_t sink_tokens = 0) {
  return {DType::kF32, c.num_kv_heads, c.k_dim, c.v_dim, 16, c.exact_dim > 0, 0, scheme, c.exact_dim, mean, sink_tokens};
}

// The same cache in F32: keys and values as the codes stand for them.
std::unique_ptr<TestKv> Decoded(const Case& c, const TestKv& codes) {
  auto plain = std::make_unique<TestKv>(KvShape{DType::kF32, c.num_kv_heads, c.k_dim, c.v_dim, 16, c.exact_dim > 0},
                                        std::initializer_list<int32_t>{c.kv_len});
  for (int32_t head = 0; head < c.num_kv_heads; ++head) {
    for (int32_t t = 0; t < c.kv_len; ++t) plain->Write(0, head, t, codes.Key(0, head, t), codes.Value(0, head, t));
  }
  return plain;
}

double RmsError(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    size += double{want[i]} * want[i];
  }
  return std::sqrt(error / size);
}

TEST(AttentionCodes, EqualsPlainAttentionOverWhatTheyStandFor) {
  const Case cases[] = {{9, 3, 64, 64, 0, 70},  {4, 1, 128, 128, 0, 60}, {2, 2, 16, 16, 0, 40},  {3, 1, 256, 64, 0, 30},
                        {9, 1, 576, 512, 64, 20}, {5, 1, 80, 96, 0, 33},    {1, 1, 13, 9, 0, 20}, {6, 2, 192, 128, 0, 1}};
  for (const KvFormat& format : KvFormats()) {
    for (const Case& c : cases) {
      for (const auto& [mean, sinks] : {std::pair{false, 0}, {true, 0}, {true, 16}, {false, 32}}) {
        TestKv codes(ShapeOf(c, format.scheme, mean, sinks), {c.kv_len});
        codes.FillNormal(std::vector<int32_t>{c.kv_len}, std::vector<int64_t>{3});
        const auto plain = Decoded(c, codes);
        for (const int32_t q_len : {1, std::min(c.kv_len, 17)}) {
          const auto q = TestRng(8).NormalVector(int64_t{q_len} * c.num_q_heads * c.k_dim, 2.0f);
          const auto want = Attend(Isa::kRef, c, plain->view(), q, q_len);
          for (const Isa isa : TestableIsas()) {
            const double error = RmsError(Attend(isa, c, codes.view(), q, q_len), want);
            // 127 steps of the largest of a few hundred values: 1 % of a score's deviation, which is about 2.
            EXPECT_LT(error, format.scheme.key == KvCode::kE4M3 ? 1e-5 : 0.03)
                << IsaName(isa) << " " << format.name << " k_dim " << c.k_dim << " mean " << mean << " sinks " << sinks << " rows " << q_len;
          }
        }
      }
    }
  }
}

// Against attention over what was written: each format's error on bell-shaped keys and values, as measured; a change of
// the arithmetic that costs accuracy shows here.
TEST(AttentionCodes, ErrorOfEachFormat) {
  const Case c = {8, 2, 128, 128, 0, 150};
  TestKv plain({DType::kF32, 2, 128, 128, 16}, {c.kv_len});
  plain.FillNormal(std::vector<int32_t>{c.kv_len}, std::vector<int64_t>{3});
  const auto q = TestRng(8).NormalVector(int64_t{20} * c.num_q_heads * c.k_dim, 1.0f);
  const auto want = Attend(Isa::kRef, c, plain.view(), q, 20);
  const std::pair<const char*, double> limits[] = {{"k8v8", 0.035}, {"k6v8", 0.05}, {"fp8", 0.05}, {"k6v4", 0.11}, {"k4v4", 0.16}};
  for (const auto& [name, limit] : limits) {
    TestKv codes(ShapeOf(c, FindKvFormat(name)->scheme, false), {c.kv_len});
    codes.FillNormal(std::vector<int32_t>{c.kv_len}, std::vector<int64_t>{3});
    for (const Isa isa : TestableIsas()) {
      const double error = RmsError(Attend(isa, c, codes.view(), q, 20), want);
      EXPECT_LT(error, limit) << name;
      EXPECT_GT(error, limit / 3) << name;
    }
  }
}

// A mean taken off all keys cancels: with keys far from zero it is the difference between 6-bit and 3-bit accuracy.
TEST(AttentionCodes, TheMeanCancels) {
  const Case c = {2, 1, 64, 64, 0, 200};
  TestKv codes(ShapeOf(c, FindKvFormat("k6v8")->scheme, true), {c.kv_len});
  TestKv plain({DType::kF32, 1, 64, 64, 16}, {c.kv_len});
  for (int32_t t = 0; t < c.kv_len; ++t) {
    auto key = TestRng(t).NormalVector(64, 0.5f);
    const auto value = TestRng(1000 + t).NormalVector(64);
    for (int i = 0; i < 64; ++i) key[static_cast<size_t>(i)] += 10 * codes.view().key_mean[i];
    plain.Write(0, 0, t, key, value);
    codes.Write(0, 0, t, key, value);
  }
  const auto q = TestRng(8).NormalVector(128, 0.5f);
  const auto want = Attend(Isa::kRef, c, plain.view(), q, 1);
  for (const Isa isa : TestableIsas()) EXPECT_LT(RmsError(Attend(isa, c, codes.view(), q, 1), want), 0.5) << IsaName(isa);
}

// Sinks keep what was written to BF16's accuracy, and their queries see no more: with a key that draws most of the
// attention, the error is that of its rounding no more.
TEST(AttentionCodes, SinksAreExact) {
  for (const Case& c : {Case{4, 2, 64, 64, 0, 300}, Case{4, 1, 576, 512, 64, 300}}) {
    KvShape plain_shape = ShapeOf(c, {}, false);
    TestKv plain(plain_shape, {c.kv_len}), codes(ShapeOf(c, FindKvFormat("k4v4")->scheme, false), {c.kv_len});
    TestKv with_sinks(ShapeOf(c, FindKvFormat("k4v4")->scheme, false, 16), {c.kv_len});
    const auto q = TestRng(8).NormalVector(int64_t{c.num_q_heads} * c.k_dim, 1.0f);
    for (int32_t head = 0; head < c.num_kv_heads; ++head) {
      for (int32_t t = 0; t < c.kv_len; ++t) {
        auto key = TestRng(t).NormalVector(c.k_dim, 0.3f);
        const auto value = TestRng(1000 + t).NormalVector(c.v_dim);
        for (int32_t i = 0; i < c.k_dim && t == 0; ++i) key[static_cast<size_t>(i)] = 1.0f + 0.1f * static_cast<float>(i % 7);
        for (TestKv* kv : {&plain, &codes, &with_sinks}) kv->Write(0, head, t, key, value);
      }
    }
    std::vector<float> queries = q;  // all of them like the first key
    for (float& x : queries) x = 0.5f + 0.1f * x;
    const auto want = Attend(Isa::kRef, c, plain.view(), queries, 1);
    for (const Isa isa : TestableIsas()) {
      const double without = RmsError(Attend(isa, c, codes.view(), queries, 1), want);
      EXPECT_LT(RmsError(Attend(isa, c, with_sinks.view(), queries, 1), want), 0.3 * without) << IsaName(isa) << " " << c.k_dim;
    }
  }
}

// Garbage that was written is silenced (quant/kv_code.h); a query that is no number gives outputs that are none.
TEST(AttentionCodes, NoNumbers) {
  const Case c = {2, 1, 64, 64, 0, 70};
  for (const KvFormat& format : KvFormats()) {
    for (const float bad : {NAN, INFINITY, -INFINITY, 1e38f}) {
      TestKv codes(ShapeOf(c, format.scheme, false), {c.kv_len});
      codes.FillNormal(std::vector<int32_t>{c.kv_len}, std::vector<int64_t>{3});
      std::vector<float> key(64, 1.0f), value(64, 1.0f);
      key[3] = bad, value[3] = bad;
      codes.Write(0, 0, 40, key, value);
      auto q = TestRng(8).NormalVector(128);
      for (const Isa isa : TestableIsas()) {
        for (const float x : Attend(isa, c, codes.view(), q, 1)) EXPECT_TRUE(std::isfinite(x)) << format.name << " " << bad;
      }
      q[5] = NAN;
      for (const Isa isa : TestableIsas()) {
        const auto out = Attend(isa, c, codes.view(), q, 1);
        EXPECT_TRUE(std::isnan(out[0])) << IsaName(isa) << " " << format.name;
        EXPECT_TRUE(std::isfinite(out[64])) << format.name;  // the other head
      }
    }
  }
}

}  // namespace
}  // namespace cachalot
