// batch_rows, RopeTable and RopeAppend on the GPU.
#include <cmath>

#include "gpu_testing.h"
#include "kernels/head_matmul/head_matmul.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_append/rope_append.h"

namespace cachalot {
namespace {

class GpuRope : public GpuTest {};

const CudaBackend& Backend() { return *Gpu::Get().backend; }

void CheckBatchRows(int32_t long_span, int32_t num_rows) {
  const std::vector<SeqSpan> spans = {{3, 0, 2, 10}, {0, 4, 1, 1}, {7, 5, 0, 9}, {1, 6, long_span, long_span}};
  GpuBatch batch(spans, num_rows);
  batch.Fill();
  const std::vector<int32_t> slots = batch.slots(), positions = batch.positions();
  for (int32_t row = 0; row < num_rows; ++row) {
    int32_t slot = -1, position = -1;
    for (const SeqSpan& span : spans) {
      if (row < span.q_begin || row >= span.q_begin + span.q_len) continue;
      slot = span.slot;
      position = span.kv_len - span.q_len + row - span.q_begin;
    }
    ASSERT_EQ(slots[row], slot) << row;
    ASSERT_EQ(positions[row], position) << row;
  }
  EXPECT_TRUE(batch.Intact());
}

TEST_F(GpuRope, BatchRows) {
  CheckBatchRows(300, 310);
  CheckBatchRows(3, 12);
  CheckBatchRows(1500, 1510);  // more than one block takes
}

TEST_F(GpuRope, TableIsExactAtLargePositions) {
  const std::vector<int32_t> positions = {0, 1, 2, 999999, 1000000, 2147483647, -1};
  std::vector<float> inv_freq;
  for (int i = 0; i < 33; ++i) inv_freq.push_back(static_cast<float>(std::pow(500000.0, -i / 33.0)));
  const int64_t half = 33, count = static_cast<int64_t>(positions.size()) * half;
  const GpuArray<int32_t> gpu_positions(positions);
  const GpuArray<float> gpu_freq(inv_freq), cos(count), sin(count);
  for (float mscale : {1.0f, 1.25f}) {
    GPU_OK(Backend().rope_table(Gpu::Get().Exec(), {.positions = gpu_positions.data(),
                                                    .num_tokens = static_cast<int64_t>(positions.size()),
                                                    .inv_freq = gpu_freq.data(),
                                                    .half_dim = half,
                                                    .mscale = mscale,
                                                    .cos = cos.data(),
                                                    .sin = sin.data()}));
    const std::vector<float> got_cos = cos.Read(), got_sin = sin.Read();
    EXPECT_TRUE(cos.Intact() && sin.Intact());
    for (size_t t = 0; t < positions.size(); ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const long double angle = static_cast<long double>(std::max(positions[t], 0)) * inv_freq[i];
        // Beyond 10^8 the product itself is rounded: half a unit of a double of that size.
        const double limit = (positions[t] > 100000000 ? 4e-7 : 1e-7) * mscale;
        EXPECT_NEAR(got_cos[t * half + i], std::cos(angle) * mscale, limit) << positions[t] << " " << i;
        EXPECT_NEAR(got_sin[t * half + i], std::sin(angle) * mscale, limit) << positions[t] << " " << i;
      }
    }
  }
}

struct Shape {
  KvShape kv;
  RopeStyle style;
  int32_t rope_dim, num_q_heads, q_dim, q_rope_offset, k_rope_offset;
};

TEST_F(GpuRope, AppendHasTheReferencesBits) {
  std::vector<Shape> shapes;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (RopeStyle style : {RopeStyle::kHalf, RopeStyle::kInterleaved}) {
      shapes.push_back({{dtype, 3, 64, 64, 16}, style, 64, 9, 64, 0, 0});
      shapes.push_back({{dtype, 1, 13, 5, 8}, style, 6, 2, 17, 11, 7});
      shapes.push_back({{dtype, 2, 40, 24, 32}, style, 20, 4, 40, 3, 2});
      shapes.push_back({{dtype, 1, 576, 512, 64, true}, style, 64, 16, 192, 128, 512});
      shapes.push_back({{dtype, 2, 8, 8, 8}, style, 0, 2, 8, 0, 0});
      shapes.push_back({{dtype, 8, 128, 128, 64, false, 6}, style, 128, 32, 128, 0, 0});
    }
  }
  for (const KvFormat& format : KvFormats()) {
    for (const bool mean : {false, true}) {
      KvScheme scheme = format.scheme;
      const DType dtype = DType::kF32;
      shapes.push_back({{dtype, 3, 64, 64, 16, false, 0, scheme, 0, mean}, RopeStyle::kHalf, 64, 9, 64, 0, 0});
      shapes.push_back({{dtype, 8, 128, 128, 48, false, 8, scheme, 0, mean}, RopeStyle::kHalf, 128, 32, 128, 0, 0});
      shapes.push_back({{dtype, 1, 576, 512, 64, true, 0, scheme, 64, mean}, RopeStyle::kInterleaved, 64, 16, 192, 128, 512});
      shapes.push_back({{dtype, 2, 80, 40, 24, false, 8, scheme, 0, mean}, RopeStyle::kInterleaved, 20, 4, 80, 3, 2});
      shapes.push_back({{dtype, 1, 13, 5, 8, false, 0, scheme, 0, mean}, RopeStyle::kHalf, 6, 2, 17, 11, 7});
      shapes.push_back({{dtype, 2, 256, 128, 1, false, 0, scheme, 0, mean}, RopeStyle::kHalf, 128, 2, 256, 0, 0});
      shapes.push_back({{dtype, 2, 128, 128, 16, false, 0, scheme, 0, mean, 16}, RopeStyle::kHalf, 128, 4, 128, 0, 0});
      shapes.push_back({{dtype, 1, 576, 512, 8, true, 0, scheme, 64, mean, 8}, RopeStyle::kInterleaved, 64, 16, 192, 128, 512});
      scheme.key_group = scheme.latent_group = mean ? 32 : 0;
      scheme.rotate = !scheme.rotate;
      shapes.push_back({{dtype, 2, 128, 128, 16, false, 0, scheme, 0, mean}, RopeStyle::kHalf, 128, 4, 128, 0, 0});
      shapes.push_back({{dtype, 1, 576, 512, 16, true, 0, scheme, 64, mean}, RopeStyle::kInterleaved, 64, 16, 192, 128, 512});
    }
  }
  const std::vector<std::vector<SeqSpan>> batches = {
      {{0, 0, 1, 1}},
      {{2, 1, 7, 20}, {0, 8, 0, 5}, {1, 10, 33, 33}, {3, 50, 1, 129}},
      {{0, 0, 300, 310}},
  };
  for (const Shape& s : shapes) {
    for (const std::vector<SeqSpan>& spans : batches) {
      SCOPED_TRACE(fmt::format("{} k_dim {} rope {} style {} spans {}", s.kv.Name(), s.kv.k_dim, s.rope_dim,
                               static_cast<int>(s.style), spans.size()));
      TestRng rng(11);
      std::vector<int32_t> kv_lens(4, 1);
      int32_t rows = 0;
      for (const SeqSpan& span : spans) {
        kv_lens[span.slot] = span.kv_len;
        rows = std::max(rows, span.q_begin + span.q_len);
      }
      rows += 3;  // padding of the bucket
      TestKv cache(s.kv, kv_lens);
      const bool mla = s.kv.value_in_key;
      const int64_t q_token = s.num_q_heads * s.q_dim + 3, k_head = s.kv.k_dim + 1, v_head = s.kv.v_dim;
      const int64_t k_token = s.kv.num_kv_heads * k_head, v_token = s.kv.num_kv_heads * v_head + 5;
      std::vector<float> q = rng.NormalVector(rows * q_token);
      const auto k = rng.NormalVector(rows * k_token), v = rng.NormalVector(rows * v_token);
      const auto cos = rng.NormalVector(rows * s.rope_dim / 2 + 1), sin = rng.NormalVector(rows * s.rope_dim / 2 + 1);
      RopeAppendParams params = {.spans = spans,
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
                                 .kv = cache.view()};
      // The GPU gets everything as it was before the reference ran.
      const GpuKv gpu_cache(cache, 4);
      const GpuArray<float> gpu_q(q), gpu_k(k), gpu_v(v), gpu_cos(cos), gpu_sin(sin);
      RopeAppend(TestContext(Isa::kRef), params);

      GpuBatch batch(spans, rows);
      batch.Fill();
      params.cos = gpu_cos.data();
      params.sin = gpu_sin.data();
      params.q = gpu_q.data();
      params.k = gpu_k.data();
      params.v = mla ? nullptr : gpu_v.data();
      params.kv = gpu_cache.view();
      GPU_OK(Backend().rope_append(Gpu::Get().Exec(), batch.get(), params));
      ASSERT_EQ(FirstBitDifference(gpu_q.Read(), q), "") << "q";
      ASSERT_EQ(FirstBitDifference(gpu_cache.AllBytes(), cache.AllBytes()), "") << "cache";
      EXPECT_TRUE(gpu_q.Intact() && gpu_cache.Intact() && batch.Intact());
    }
  }
}

// NaN, infinities, huge and tiny values: the reference's codes.
TEST_F(GpuRope, CodesOfSpecialValues) {
  const float special[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, 0.0f, -0.0f, 5e4f, 1e-38f};
  for (const KvFormat& format : KvFormats()) {
    for (const float value : special) {
      SCOPED_TRACE(fmt::format("{} {}", format.name, value));
      std::vector<float> k = TestRng(5).NormalVector(64), v = TestRng(6).NormalVector(64);
      k[9] = value, v[40] = value;
      if (value == 0 || value == 1e-38f) std::fill(k.begin(), k.end(), value), std::fill(v.begin(), v.end(), value);
      TestKv cache({DType::kF32, 1, 64, 64, 16, false, 0, format.scheme}, {3});
      const GpuKv gpu_cache(cache, 1);
      const std::vector<SeqSpan> spans = {{0, 0, 1, 3}};
      RopeAppend(TestContext(Isa::kRef), {.spans = spans, .rope_dim = 0, .k = k.data(), .v = v.data(), .kv = cache.view()});
      const GpuArray<float> gpu_k(k), gpu_v(v), angles(1);
      GpuBatch batch(spans, 1);
      batch.Fill();
      GPU_OK(Backend().rope_append(Gpu::Get().Exec(), batch.get(), {.cos = angles.data(), .sin = angles.data(), .rope_dim = 0, .k = gpu_k.data(),
                                                                    .v = gpu_v.data(), .kv = gpu_cache.view()}));
      EXPECT_EQ(FirstBitDifference(gpu_cache.AllBytes(), cache.AllBytes()), "");
      EXPECT_TRUE(gpu_cache.Intact());
    }
  }
}

// What MLA has done on the way: the bits of RmsNorm before and CopyHeads behind.
TEST_F(GpuRope, NormOfTheLatentAndCopyOfTheQueries) {
  struct Case {
    KvShape kv;
    int32_t num_q_heads, q_dim, q_rope_offset;
  };
  for (const Case& c : {Case{{DType::kF16, 1, 576, 512, 64, true}, 16, 192, 128}, Case{{DType::kF32, 1, 40, 32, 16, true}, 3, 24, 16},
                        Case{{DType::kF32, 1, 21, 13, 16, true}, 2, 11, 3},
                        Case{{DType::kF32, 1, 576, 512, 64, true, 0, FindKvFormat("k6v8")->scheme, 64, true}, 16, 192, 128}}) {
    for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalf}) {
      for (const std::vector<SeqSpan>& spans : {std::vector<SeqSpan>{{0, 0, 1, 7}}, {{2, 0, 5, 20}, {1, 5, 33, 33}}, {{0, 0, 300, 310}}}) {
        std::vector<int32_t> kv_lens(4, 1);
        int32_t rows = 0;
        for (const SeqSpan& span : spans) kv_lens[span.slot] = span.kv_len, rows = std::max(rows, span.q_begin + span.q_len);
        const int32_t latent = c.kv.v_dim, rope_dim = c.kv.k_dim - latent;
        SCOPED_TRACE(fmt::format("latent {} + {} of {} rows", latent, rope_dim, rows));
        const int64_t q_token = c.num_q_heads * c.q_dim, k_token = c.kv.k_dim, copy_head = c.kv.k_dim, copy_token = c.num_q_heads * copy_head;
        TestRng rng(12);
        const TestKv cache(c.kv, kv_lens);
        const GpuKv want_cache(cache, 4), got_cache(cache, 4);
        const std::vector<float> q = rng.NormalVector(rows * q_token), k = rng.NormalVector(rows * k_token);
        const GpuArray<float> want_q(q), got_q(q), normed(k), raw(k), weight(rng.NormalVector(latent));
        const GpuArray<float> cos(rng.NormalVector(rows * rope_dim / 2)), sin(rng.NormalVector(rows * rope_dim / 2));
        const GpuArray<float> want_copy(rows * copy_token), got_copy(rows * copy_token);
        GpuBatch batch(spans, rows);
        batch.Fill();
        RopeAppendParams params = {.cos = cos.data(), .sin = sin.data(), .style = style, .rope_dim = rope_dim, .q = want_q.data(),
                                   .q_token_stride = q_token, .q_head_stride = c.q_dim, .num_q_heads = c.num_q_heads,
                                   .q_rope_offset = c.q_rope_offset, .k = normed.data(), .k_token_stride = k_token, .k_rope_offset = latent,
                                   .kv = want_cache.view()};
        const CudaExec exec = Gpu::Get().Exec();
        GPU_OK(Backend().rms_norm(exec, {.x = normed.data(), .token_stride_x = k_token, .num_tokens = rows, .dim = latent,
                                         .weight = weight.data(), .eps = 1e-5f, .y = normed.data(), .token_stride_y = k_token}));
        GPU_OK(Backend().rope_append(exec, batch.get(), params));
        GPU_OK(Backend().copy_heads(exec, {.x = want_q.data() + c.q_rope_offset, .x_stride = q_token, .x_head_stride = c.q_dim, .m = rows,
                                           .num_heads = c.num_q_heads, .dim = rope_dim, .y = want_copy.data() + latent,
                                           .y_stride = copy_token, .y_head_stride = copy_head}));
        params.q = got_q.data();
        params.k = raw.data();
        params.kv = got_cache.view();
        params.k_norm_weight = weight.data();
        params.k_norm_eps = 1e-5f;
        params.q_copy = got_copy.data() + latent;
        params.q_copy_token_stride = copy_token;
        params.q_copy_head_stride = copy_head;
        params.q_copy_rows = rows;
        GPU_OK(Backend().rope_append(exec, batch.get(), params));
        EXPECT_EQ(FirstBitDifference(got_q.Read(), want_q.Read()), "") << "q";
        EXPECT_EQ(FirstBitDifference(got_copy.Read(), want_copy.Read()), "") << "copy of q";
        EXPECT_EQ(FirstBitDifference(got_cache.AllBytes(), want_cache.AllBytes()), "") << "cache";
        EXPECT_EQ(FirstBitDifference(raw.Read(), k), "") << "k was changed";
        EXPECT_TRUE(got_q.Intact() && got_copy.Intact() && got_cache.Intact());
      }
    }
  }
}

// The norms of Qwen3's heads on the way: the bits of RmsNorm before.
TEST_F(GpuRope, NormOfEachHead) {
  struct Case {
    KvShape kv;
    int32_t num_q_heads, rope_dim, gap;
  };
  for (const Case& c : {Case{{DType::kF16, 8, 128, 128, 64}, 32, 128, 0}, Case{{DType::kBF16, 2, 64, 64, 16}, 6, 64, 4},
                        Case{{DType::kF32, 3, 30, 30, 16}, 9, 20, 1}, Case{{DType::kF32, 1, 512, 512, 16}, 2, 512, 0},
                        Case{{DType::kF32, 8, 128, 128, 16, false, 0, FindKvFormat("k6v4")->scheme, 0, true}, 32, 128, 0}}) {
    for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalf}) {
      for (const std::vector<SeqSpan>& spans : {std::vector<SeqSpan>{{0, 0, 1, 7}}, {{2, 0, 5, 20}, {1, 5, 33, 33}}}) {
        std::vector<int32_t> kv_lens(4, 1);
        int32_t rows = 0;
        for (const SeqSpan& span : spans) kv_lens[span.slot] = span.kv_len, rows = std::max(rows, span.q_begin + span.q_len);
        const int64_t dim = c.kv.k_dim, head = dim + c.gap, token = (c.num_q_heads + 2 * c.kv.num_kv_heads) * head;
        SCOPED_TRACE(fmt::format("{} + {} heads of {}, {} rows", c.num_q_heads, c.kv.num_kv_heads, dim, rows));
        TestRng rng(13);
        const TestKv cache(c.kv, kv_lens);
        const GpuKv want_cache(cache, 4), got_cache(cache, 4);
        const std::vector<float> qkv = rng.NormalVector(rows * token);
        const GpuArray<float> want(qkv), got(qkv), q_weight(rng.NormalVector(dim)), k_weight(rng.NormalVector(dim));
        const GpuArray<float> cos(rng.NormalVector(rows * c.rope_dim / 2)), sin(rng.NormalVector(rows * c.rope_dim / 2));
        GpuBatch batch(spans, rows);
        batch.Fill();
        const int64_t k_at = c.num_q_heads * head, v_at = k_at + c.kv.num_kv_heads * head;
        const auto params_of = [&](const GpuArray<float>& values, const PagedKv& kv) {
          return RopeAppendParams{.cos = cos.data(), .sin = sin.data(), .style = style, .rope_dim = c.rope_dim, .q = values.data(),
                                  .q_token_stride = token, .q_head_stride = head, .num_q_heads = c.num_q_heads, .k = values.data() + k_at,
                                  .k_token_stride = token, .k_head_stride = head, .v = values.data() + v_at, .v_token_stride = token,
                                  .v_head_stride = head, .kv = kv};
        };
        const CudaExec exec = Gpu::Get().Exec();
        const auto norm = [&](int64_t at, int64_t heads, const GpuArray<float>& weight) {
          GPU_OK(Backend().rms_norm(exec, {.x = want.data() + at, .token_stride_x = token, .head_stride_x = head, .num_tokens = rows,
                                           .num_heads = heads, .dim = dim, .weight = weight.data(), .eps = 1e-6f, .y = want.data() + at,
                                           .token_stride_y = token, .head_stride_y = head}));
        };
        norm(0, c.num_q_heads, q_weight);
        norm(k_at, c.kv.num_kv_heads, k_weight);
        GPU_OK(Backend().rope_append(exec, batch.get(), params_of(want, want_cache.view())));
        RopeAppendParams params = params_of(got, got_cache.view());
        params.q_norm_weight = q_weight.data();
        params.k_head_norm_weight = k_weight.data();
        params.head_norm_eps = 1e-6f;
        GPU_OK(Backend().rope_append(exec, batch.get(), params));
        const std::vector<float> got_q = got.Read(), want_q = want.Read();
        for (int32_t row = 0; row < rows; ++row) {  // k and v are left as they were
          const auto q_of = [&](const std::vector<float>& all) { return std::span(all).subspan(row * token, k_at); };
          ASSERT_EQ(FirstBitDifference(q_of(got_q), q_of(want_q)), "") << "q of row " << row;
          ASSERT_EQ(FirstBitDifference(std::span(got_q).subspan(row * token + k_at, token - k_at),
                                       std::span(qkv).subspan(row * token + k_at, token - k_at)), "");
        }
        EXPECT_EQ(FirstBitDifference(got_cache.AllBytes(), want_cache.AllBytes()), "") << "cache";
        EXPECT_TRUE(got.Intact() && got_cache.Intact());
      }
    }
  }
}

TEST_F(GpuRope, ConversionsRoundToNearestEven) {
  const std::vector<float> values = {1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f, 65519.0f, 65520.0f, 1e-7f, -0.0f, INFINITY, -INFINITY,
                                     3.4e38f,         0x1p-25f,            1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-9f, 6.0e-8f, -2.5f, 0.1f, 2.0f};
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    TestKv cache({dtype, 1, 16, 16, 16}, {1});
    const GpuKv gpu_cache(cache, 1);
    const std::vector<SeqSpan> spans = {{0, 0, 1, 1}};
    const std::vector<float> unused(1, 0.0f);
    RopeAppendParams params = {.spans = spans, .rope_dim = 0, .k = values.data(), .v = values.data(), .kv = cache.view()};
    params.cos = params.sin = unused.data();
    RopeAppend(TestContext(Isa::kRef), params);
    const GpuArray<float> gpu_values(values);
    GpuBatch batch(spans, 1);
    batch.Fill();
    params.k = params.v = gpu_values.data();
    params.kv = gpu_cache.view();
    GPU_OK(Backend().rope_append(Gpu::Get().Exec(), batch.get(), params));
    EXPECT_EQ(FirstBitDifference(gpu_cache.AllBytes(), cache.AllBytes()), "") << DTypeName(dtype);
  }
}

}  // namespace
}  // namespace cachalot
