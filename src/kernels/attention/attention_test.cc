#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "kernels/common/kv_testing.h"

namespace cachalot {
namespace {

struct Shape {
  KvShape kv;
  int32_t num_q_heads = 1;
  int32_t window = 0;
  float q_scale = 1.0f;
};

struct Part {
  int32_t q_len, kv_len;
  int64_t content_id;  // which sequence this is: its queries, keys and values are functions of this and the
                       // position
};

struct Call {
  Isa isa = Isa::kRef;
  int threads = 1;
  uint64_t table_seed = 1;
  int64_t filled_to = -1;  // cache contents end here (poison behind); -1: at each part's kv_len
};

std::vector<float> QueryOf(const Shape& s, int64_t content_id, int64_t position) {
  TestRng rng(static_cast<uint64_t>(content_id * 7919 + position * 104729 + 17));
  return rng.NormalVector(int64_t{s.num_q_heads} * s.kv.k_dim, s.q_scale);
}

// The outputs of all parts' rows, [rows, num_q_heads, v_dim].
std::vector<float> RunOp(const Shape& s, const std::vector<Part>& parts, const Call& call,
                         const std::function<void(TestKv&)>& change = nullptr) {
  std::vector<SeqSpan> spans;
  std::vector<int32_t> room, filled;
  std::vector<int64_t> ids;
  int32_t rows = 0;
  for (const Part& part : parts) {
    const auto slot = static_cast<int32_t>(spans.size());
    spans.push_back({slot, rows + 2 * slot, part.q_len, part.kv_len});  // two unused rows between the parts
    room.push_back(std::max<int32_t>(part.kv_len, static_cast<int32_t>(call.filled_to)));
    filled.push_back(call.filled_to >= 0 ? static_cast<int32_t>(call.filled_to) : part.kv_len);
    ids.push_back(part.content_id);
    rows += part.q_len;
  }
  TestKv cache(s.kv, room, call.table_seed);
  cache.FillNormal(filled, ids);
  if (change) change(cache);
  const int64_t total_rows = rows + 2 * static_cast<int64_t>(parts.size());
  const int64_t q_head = s.kv.k_dim + 3, q_token = s.num_q_heads * q_head + 1;
  const int64_t out_head = s.kv.v_dim + 5, out_token = s.num_q_heads * out_head + 7;
  GuardedBuffer<float> q(total_rows * q_token), out(total_rows * out_token);
  for (size_t p = 0; p < parts.size(); ++p) {
    for (int32_t i = 0; i < parts[p].q_len; ++i) {
      const auto query = QueryOf(s, parts[p].content_id, parts[p].kv_len - parts[p].q_len + i);
      for (int32_t h = 0; h < s.num_q_heads; ++h) {
        std::copy_n(query.begin() + int64_t{h} * s.kv.k_dim, s.kv.k_dim,
                    q.data() + (spans[p].q_begin + i) * q_token + h * q_head);
      }
    }
  }
  TestContext ctx(
      call.isa, call.threads,
      AttentionWorkspaceBytes(call.threads, s.num_q_heads, s.kv.num_kv_heads, s.kv.k_dim, s.kv.v_dim));
  Attention(ctx, {.spans = spans,
                  .q = q.data(),
                  .q_token_stride = q_token,
                  .q_head_stride = q_head,
                  .num_q_heads = s.num_q_heads,
                  .scale = 1 / std::sqrt(static_cast<float>(s.kv.k_dim)),
                  .window = s.window,
                  .kv = cache.view(),
                  .out = out.data(),
                  .out_token_stride = out_token,
                  .out_head_stride = out_head});
  EXPECT_TRUE(q.Intact() && out.Intact() && cache.Intact());
  EXPECT_EQ(ctx.workspace().used(), 0);
  const bool covered = s.kv.k_dim % 8 == 0 && s.kv.v_dim % 8 == 0;
  EXPECT_EQ(ctx.counters().generic_calls, covered || call.isa == Isa::kRef ? 0 : 1);
  std::vector<float> result;
  std::vector<bool> written(total_rows * out_token);
  for (size_t p = 0; p < parts.size(); ++p) {
    for (int32_t i = 0; i < parts[p].q_len; ++i) {
      for (int32_t h = 0; h < s.num_q_heads; ++h) {
        const int64_t at = (spans[p].q_begin + i) * out_token + h * out_head;
        result.insert(result.end(), out.data() + at, out.data() + at + s.kv.v_dim);
        std::fill_n(written.begin() + at, s.kv.v_dim, true);
      }
    }
  }
  for (int64_t i = 0; i < total_rows * out_token; ++i) {
    if (!written[i] && !out.Poisoned(i)) return ADD_FAILURE() << "wrote outside its rows at " << i, result;
  }
  return result;
}

std::string Name(const Shape& s) {
  return fmt::format("{} heads {}/{} k {} v {} block {} window {}", s.kv.Name(), s.num_q_heads,
                     s.kv.num_kv_heads, s.kv.k_dim, s.kv.v_dim, s.kv.block_tokens, s.window);
}

// Two tokens with keys (1, 0) and (0, 1), query (ln 3, 0), scale 1: weights 3/4 and 1/4.
TEST(Attention, HandWorked) {
  for (Isa isa : TestableIsas()) {
    for (int window : {0, 1, 2, 3}) {
      TestContext ctx(isa);
      TestKv cache({.k_dim = 2, .v_dim = 3, .block_tokens = 8}, {2});
      cache.Write(0, 0, 0, std::vector<float>{1, 0}, std::vector<float>{4, 8, 0});
      cache.Write(0, 0, 1, std::vector<float>{0, 1}, std::vector<float>{0, 4, 12});
      const float q[] = {5, 5, std::log(3.0f), 0};
      float out[6];
      const SeqSpan span{0, 0, 2, 2};
      Attention(ctx, {.spans = {&span, 1},
                      .q = q,
                      .q_token_stride = 2,
                      .q_head_stride = 2,
                      .num_q_heads = 1,
                      .window = window,
                      .kv = cache.view(),
                      .out = out,
                      .out_token_stride = 3,
                      .out_head_stride = 3});
      EXPECT_EQ(out[0], 4);  // the first token sees only itself
      EXPECT_EQ(out[1], 8);
      EXPECT_EQ(out[2], 0);
      EXPECT_FLOAT_EQ(out[3], window == 1 ? 0.0f : 3.0f);
      EXPECT_FLOAT_EQ(out[4], window == 1 ? 4.0f : 7.0f);
      EXPECT_FLOAT_EQ(out[5], window == 1 ? 12.0f : 3.0f);
    }
  }
}

// Equal keys: the output is the mean of the visible values, whatever the sizes.
TEST(Attention, EqualKeysGiveTheMean) {
  for (Isa isa : TestableIsas()) {
    TestContext ctx(isa, 2);
    TestKv cache({.dtype = DType::kF16, .k_dim = 16, .v_dim = 8, .block_tokens = 16}, {700});
    for (int t = 0; t < 700; ++t) {
      cache.Write(0, 0, t, std::vector<float>(16, 0.5f), std::vector<float>(8, static_cast<float>(t)));
    }
    const std::vector<float> q(16, 1.0f);
    std::vector<float> out(8);
    const SeqSpan span{0, 0, 1, 700};
    for (int window : {0, 300}) {
      Attention(ctx, {.spans = {&span, 1},
                      .q = q.data(),
                      .q_token_stride = 16,
                      .q_head_stride = 16,
                      .num_q_heads = 1,
                      .window = window,
                      .kv = cache.view(),
                      .out = out.data(),
                      .out_token_stride = 8,
                      .out_head_stride = 8});
      for (float v : out) EXPECT_NEAR(v, window == 0 ? 349.5f : 549.5f, 1e-3f);
    }
  }
}

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    shapes.push_back({{dtype, 3, 64, 64, 16}, 9});              // SmolLM2
    shapes.push_back({{dtype, 1, 128, 128, 32, false, 6}, 7});  // Qwen2.5-7B's group
    shapes.push_back({{dtype, 2, 16, 16, 8}, 2, 1});            // window 1
    shapes.push_back({{dtype, 1, 40, 24, 64}, 5, 37});          // window smaller than a tile, odd dims
    shapes.push_back({{dtype, 1, 576, 512, 64, true}, 16});     // MLA, absorbed
    shapes.push_back({{dtype, 2, 192, 128, 16}, 4, 200});       // MLA, expanded
    shapes.push_back({{dtype, 1, 80, 80, 128}, 8});
    shapes.push_back({{dtype, 1, 13, 9, 16}, 3, 5});  // no variant but the reference covers it
  }
  for (const KvFormat& format : KvFormats()) {
    const KvScheme& scheme = format.scheme;
    const auto quantised = [&](KvShape kv, bool mean) {
      kv.dtype = DType::kF16;
      kv.scheme = scheme;
      kv.with_mean = mean;
      if (kv.value_in_key) kv.exact_dim = kv.k_dim - kv.v_dim;
      return kv;
    };
    shapes.push_back({quantised({DType::kF16, 3, 64, 64, 16}, true), 9});
    shapes.push_back({quantised({DType::kF16, 1, 128, 128, 32, false, 6}, false), 7});
    shapes.push_back({quantised({DType::kF16, 2, 16, 16, 8}, false), 2, 1});
    shapes.push_back({quantised({DType::kF16, 1, 40, 24, 64}, true), 5, 37});
    shapes.push_back({quantised({DType::kF16, 1, 576, 512, 64, true}, true), 16});
    shapes.push_back({quantised({DType::kF16, 1, 24, 16, 1, true}, false), 4});
    shapes.push_back({quantised({DType::kF16, 1, 256, 256, 24}, false), 2, 200});
    shapes.push_back({quantised({DType::kF16, 1, 13, 9, 16}, true), 3, 5});
  }
  shapes.push_back({{DType::kF16, 1, 96, 64, 24}, 4, 100});       // a block size that is no power of two
  shapes.push_back({{DType::kF32, 1, 64, 64, 16}, 4, 0, 30.0f});  // steep softmax: most weights vanish
  return shapes;
}

TEST(Attention, EveryVariantAgainstTheReference) {
  const std::vector<std::vector<Part>> batches = {
      {{1, 1, 1}},
      {{1, 65, 1}, {0, 30, 2}, {1, 300, 3}, {1, 64, 4}, {1, 2, 5}},
      {{5, 5, 1}, {1, 257, 2}, {21, 100, 3}, {0, 0, 4}},
      {{1, 1000, 1}},
      {{50, 330, 1}},
  };
  for (const Shape& s : Shapes()) {
    for (size_t b = 0; b < batches.size(); ++b) {
      // The reference is slow: long contexts with one type, and not with the widest rows.
      if (b >= 3 && (s.kv.k_dim == 576 || s.kv.dtype != DType::kF16)) continue;
      if (b >= 2 && s.kv.scheme.quantised() && s.kv.k_dim > 40 && s.kv.scheme != FindKvFormat("k6v8")->scheme) continue;
      if (b >= 3 && s.kv.scheme.quantised() && s.kv.k_dim > 64) continue;
      const std::vector<float> want = RunOp(s, batches[b], {});
      std::vector<float> fast;  // of the first instruction set; the others give the same bits (attention_kernels.h)
      for (Isa isa : TestableIsas()) {
        if (isa == Isa::kRef) continue;
        SCOPED_TRACE(fmt::format("{} {} batch {}", IsaName(isa), Name(s), b));
        const std::vector<float> got = RunOp(s, batches[b], {.isa = isa});
        const Comparison c = Compare(got, want, ToleranceFor(OpClass::kSoftmax));
        EXPECT_TRUE(c.ok) << c.message;
        if (fast.empty()) fast = got;
        EXPECT_EQ(FirstBitDifference(got, fast), "");
        EXPECT_EQ(FirstBitDifference(RunOp(s, batches[b], {.isa = isa, .threads = 3}), got), "");
        EXPECT_EQ(FirstBitDifference(RunOp(s, batches[b], {.isa = isa, .threads = 2, .table_seed = 99}), got),
                  "");
      }
    }
  }
}

// Whole against chunked: a chunk does not even have the later tokens in its cache.
TEST(Attention, ChunksHaveTheSameBits) {
  for (const Shape& base : Shapes()) {
    if (base.kv.dtype != DType::kF16) continue;
    const bool quantised = base.kv.scheme.quantised();
    if (quantised && base.kv.k_dim == 13) continue;
    const int32_t length = base.kv.k_dim == 576 ? (quantised ? 70 : 150) : 333;
    const int64_t row = int64_t{base.num_q_heads} * base.kv.v_dim;
    for (Isa isa : TestableIsas()) {
      if (isa == Isa::kRef && (base.kv.k_dim > 64 || quantised)) continue;
      SCOPED_TRACE(fmt::format("{} {}", IsaName(isa), Name(base)));
      const std::vector<float> whole = RunOp(base, {{length, length, 5}}, {.isa = isa, .threads = 2});
      for (int32_t chunk : {7, 33, 64}) {
        for (int32_t begin = 0; begin < length; begin += chunk == 7 ? 6 * chunk : chunk) {
          const int32_t q_len = std::min(chunk, length - begin);
          const auto part = RunOp(base, {{q_len, begin + q_len, 5}}, {.isa = isa});
          ASSERT_EQ(FirstBitDifference(part, std::span(whole).subspan(begin * row, q_len * row)), "")
              << chunk;
        }
      }
      for (int32_t position : {0, 1, 62, 63, 64, 65, 127, 128, 255, 256, 257, 332}) {
        if (position >= length) continue;
        const auto one = RunOp(base, {{1, position + 1, 5}}, {.isa = isa, .threads = 2});
        ASSERT_EQ(FirstBitDifference(one, std::span(whole).subspan(position * row, row)), "") << position;
      }
    }
  }
}

TEST(Attention, BatchBlockSizeAndPlacementDoNotChangeBits) {
  std::vector<KvScheme> schemes = {{}};
  for (const KvFormat& format : KvFormats()) schemes.push_back(format.scheme);
  for (Isa isa : TestableIsas()) for (const KvScheme& scheme : schemes) {
    if (isa == Isa::kRef && scheme.quantised()) continue;
    Shape s{{DType::kBF16, 2, 64, 64, 16, false, 0, scheme}, 8};
    const std::vector<Part> parts = {{1, 513, 1}, {20, 90, 2}, {1, 64, 3},
                                     {3, 300, 4}, {1, 1, 5},   {1, 777, 6}};
    const std::vector<float> together = RunOp(s, parts, {.isa = isa, .threads = 2});
    int64_t at = 0;
    for (const Part& part : parts) {
      for (int32_t block_tokens : {8, 16, 32, 64, 128, 24}) {
        s.kv.block_tokens = block_tokens;
        s.kv.gap = block_tokens / 4;
        const auto alone = RunOp(s, {part}, {.isa = isa, .threads = 1, .table_seed = 1000u + block_tokens});
        ASSERT_EQ(FirstBitDifference(alone, std::span(together).subspan(at, alone.size())), "")
            << block_tokens;
      }
      at += int64_t{part.q_len} * s.num_q_heads * s.kv.v_dim;
    }
  }
}

// Long contexts, few heads: where a variant may share one row's tokens among threads.
TEST(Attention, LongContextThreads) {
  for (Isa isa : TestableIsas()) {
    for (int window : {0, 900}) {
      const Shape s{{DType::kF16, 1, 64, 64, 64}, 3, window};
      const std::vector<Part> decode = {{1, 2900, 1}}, several = {{1, 2900, 1}, {1, 1500, 2}},
                              chunk = {{4, 2903, 1}};
      const auto one = RunOp(s, decode, {.isa = isa});
      for (int threads : {2, 3, 5}) {
        EXPECT_EQ(FirstBitDifference(RunOp(s, decode, {.isa = isa, .threads = threads}), one), "");
        const auto both = RunOp(s, several, {.isa = isa, .threads = threads});
        EXPECT_EQ(FirstBitDifference(std::span(both).first(one.size()), one), "");
        const auto four = RunOp(s, chunk, {.isa = isa, .threads = threads});
        EXPECT_EQ(FirstBitDifference(std::span(four).first(one.size()), one), "");
      }
      const Comparison c = Compare(one, RunOp(s, decode, {}), ToleranceFor(OpClass::kSoftmax));
      EXPECT_TRUE(c.ok) << c.message;
    }
  }
}

// What a row must not see may hold anything: NaN keys, infinite values.
TEST(Attention, UnseenTokensContributeNothing) {
  for (Isa isa : TestableIsas()) {
    for (int window : {0, 50}) {
      const Shape s{{DType::kF32, 1, 32, 16, 16}, 4, window};
      const int64_t row = s.num_q_heads * s.kv.v_dim;
      const auto clean = RunOp(s, {{200, 200, 1}}, {.isa = isa});
      const auto dirty = RunOp(s, {{200, 200, 1}}, {.isa = isa}, [](TestKv& cache) {
        cache.Write(0, 0, 77, std::vector<float>(32, NAN), std::vector<float>(16, INFINITY));
      });
      for (int64_t position = 0; position < 200; ++position) {
        const auto got = std::span(dirty).subspan(position * row, row);
        if (position < 77 || (window > 0 && position >= 77 + window)) {
          ASSERT_EQ(FirstBitDifference(got, std::span(clean).subspan(position * row, row)), "") << position;
        } else {
          for (float v : got) ASSERT_TRUE(std::isnan(v)) << position;
        }
      }
    }
  }
}

TEST(Attention, ScoresOfMinusInfinityWeighNothing) {
  for (Isa isa : TestableIsas()) {
    const Shape s{{DType::kF32, 1, 8, 8, 8}, 1};
    // Keys of -infinity against a positive query: the first 300 tokens (a whole run of tiles) have no weight.
    TestContext ctx(isa, 2);
    TestKv cache(s.kv, {302});
    for (int t = 0; t < 302; ++t) {
      cache.Write(0, 0, t, std::vector<float>(8, t < 300 ? -INFINITY : 0.0f), std::vector<float>(8, t));
    }
    const std::vector<float> q(8, 1.0f);
    std::vector<float> out(8);
    const SeqSpan span{0, 0, 1, 302};
    Attention(ctx, {.spans = {&span, 1},
                    .q = q.data(),
                    .q_token_stride = 8,
                    .q_head_stride = 8,
                    .num_q_heads = 1,
                    .kv = cache.view(),
                    .out = out.data(),
                    .out_token_stride = 8,
                    .out_head_stride = 8});
    for (float v : out) EXPECT_FLOAT_EQ(v, 300.5f) << IsaName(isa);
  }
}

// Rows of queries and outputs, and blocks of the cache, more than 2^31 values apart.
TEST(Attention, StridesBeyond32Bits) {
  constexpr int64_t kStride = (int64_t{1} << 31) + 64;
  SparseFloats q(2 * kStride), out(2 * kStride), cache(3 * kStride);
  const int32_t table[] = {2, 0};
  for (int i = 0; i < 8; ++i) {
    cache.data()[2 * kStride + 7 * 8 + i] = 0;          // key of token 7: in block 2
    cache.data()[2 * kStride + 8 * 8 + 7 * 8 + i] = 4;  // its value
    cache.data()[8 * 8 + i] = 2;                        // value of token 8: in block 0
  }
  PagedKv kv{.data = reinterpret_cast<std::byte*>(cache.data()),
             .dtype = DType::kF32,
             .block_tokens = 8,
             .num_kv_heads = 1,
             .k_dim = 8,
             .v_dim = 8,
             .block_bytes = 4 * kStride,
             .k_head_stride = 64,
             .v_offset = 64,
             .v_head_stride = 64,
             .v_token_stride = 8,
             .block_tables = table,
             .table_stride = 2};
  const SeqSpan span{0, 0, 2, 9};
  for (Isa isa : TestableIsas()) {
    TestContext ctx(isa, 2);
    Attention(ctx, {.spans = {&span, 1},
                    .q = q.data(),
                    .q_token_stride = kStride,
                    .q_head_stride = 8,
                    .num_q_heads = 1,
                    .window = 2,
                    .kv = kv,
                    .out = out.data(),
                    .out_token_stride = kStride,
                    .out_head_stride = 8});
    EXPECT_EQ(out.data()[0], 2);            // tokens 6 and 7: (0 + 4) / 2
    EXPECT_EQ(out.data()[kStride + 7], 3);  // tokens 7 and 8: (4 + 2) / 2
  }
}

TEST(Attention, CountsTheBytesItReads) {
  for (Isa isa : TestableIsas()) {
    TestContext ctx(isa, 2);
    TestKv cache({.dtype = DType::kF16, .num_kv_heads = 2, .k_dim = 64, .v_dim = 32}, {100});
    cache.FillNormal(std::vector<int32_t>{100}, std::vector<int64_t>{1});
    const std::vector<float> q(4 * 64, 1.0f);
    std::vector<float> out(4 * 32);
    const SeqSpan span{0, 0, 1, 100};
    Attention(ctx, {.spans = {&span, 1},
                    .q = q.data(),
                    .q_token_stride = 256,
                    .q_head_stride = 64,
                    .num_q_heads = 4,
                    .window = 60,
                    .kv = cache.view(),
                    .out = out.data(),
                    .out_token_stride = 128,
                    .out_head_stride = 32});
    const int64_t once = 60 * 2 * (64 + 32) * 2;  // decode shares what it reads among a group's heads
    EXPECT_EQ(ctx.counters().kv_bytes, isa == Isa::kRef ? 2 * once : once);
  }
}

}  // namespace
}  // namespace cachalot
