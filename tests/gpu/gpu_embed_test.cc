// Embed on the GPU: the rows of the table, bit for bit.
#include "gpu_matmul_testing.h"
#include "kernels/embed/embed_cuda.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/step/step.h"

namespace cachalot {
namespace {

class GpuEmbed : public GpuTest {};

const CudaBackend& Backend() { return *Gpu::Get().backend; }

TEST_F(GpuEmbed, GivesTheRowsOfTheTable) {
  const std::vector<int32_t> ids = {0, 299, 5, 5, 16, -1, 300, 128};
  constexpr int64_t kVocab = 300;
  for (DType dtype : kCudaMatmulTypes) {
    for (const int64_t dim : {32, 61, 288, 768, 1024, 1408}) {
      if (dim % CudaBlockOf(dtype) != 0) continue;
      SCOPED_TRACE(fmt::format("{} dim {}", DTypeName(dtype), dim));
      const TestWeight table = BigWeight(dtype, kVocab, dim, static_cast<uint64_t>(dim));
      const GpuWeight gpu_table(table);
      const std::vector<float> want = table.Decoded();
      const int64_t stride = dim + 3;
      const GpuArray<int32_t> gpu_ids(ids);
      const GpuArray<float> y(static_cast<int64_t>(ids.size()) * stride);
      GPU_OK(Backend().embed(Gpu::Get().Exec(), {.token_ids = gpu_ids.data(),
                                                 .num_tokens = static_cast<int64_t>(ids.size()),
                                                 .table = gpu_table.view(),
                                                 .y = y.data(),
                                                 .y_stride = stride}));
      const std::vector<float> got = y.Read();
      EXPECT_TRUE(y.Intact() && gpu_table.Intact());
      const std::vector<float> zeros(dim, 0.0f);
      for (size_t t = 0; t < ids.size(); ++t) {
        const std::span<const float> row(got.data() + t * stride, static_cast<size_t>(dim));
        const bool known = ids[t] >= 0 && ids[t] < kVocab;
        ASSERT_EQ(FirstBitDifference(row, known ? std::span<const float>(want.data() + ids[t] * dim, static_cast<size_t>(dim))
                                                : std::span<const float>(zeros)),
                  "")
            << "token " << t;
        for (int64_t i = dim; i < stride; ++i) EXPECT_TRUE(IsPoison(got[t * stride + i]));
      }
    }
  }
}

// What an MTP layer reads, in one launch and op by op: the same bits.
TEST_F(GpuEmbed, WithNormsAsTheOpsOneAfterTheOther) {
  const std::vector<int32_t> ids = {0, 299, 5, -1, 16}, rows = {3, 0, 6, 1, -1};
  constexpr int64_t kVocab = 300, kStates = 7;
  const auto tokens = static_cast<int64_t>(ids.size());
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kFP8E4M3, DType::kQ8_0, DType::kQ4_K}) {
    for (const int64_t dim : {1024, 2048, 5120, 7168, 8192}) {
      SCOPED_TRACE(fmt::format("{} dim {}", DTypeName(dtype), dim));
      const GpuWeight table(BigWeight(dtype, kVocab, dim, static_cast<uint64_t>(dim)));
      TestRng rng(static_cast<uint64_t>(dim));
      const GpuArray<int32_t> gpu_ids(ids), gpu_rows(rows);
      const GpuArray<float> hidden(rng.NormalVector(kStates * dim)), norm(rng.NormalVector(dim)), front(rng.NormalVector(dim)),
          hidden_norm(rng.NormalVector(dim));
      const CudaExec exec = Gpu::Get().Exec();
      const float eps = 1e-6f;
      for (const int way : {0, 1, 2, 3}) {  // rows by index, a norm in front
        const bool by_index = (way & 1) != 0, in_front = (way & 2) != 0;
        const GpuArray<float> embedded(tokens * dim), fronted(kStates * dim), want(tokens * 2 * dim), got(tokens * 2 * dim);
        CudaEmbedParams params = {.token_ids = gpu_ids.data(), .num_tokens = tokens, .table = table.view(), .y = embedded.data(), .y_stride = dim};
        GPU_OK(Backend().embed(exec, params));
        RmsNormParams op = {.x = embedded.data(), .token_stride_x = dim, .num_tokens = tokens, .dim = dim, .weight = norm.data(), .eps = eps,
                            .y = want.data(), .token_stride_y = 2 * dim};
        GPU_OK(Backend().rms_norm(exec, op));
        if (in_front) {
          GPU_OK(Backend().rms_norm(exec, {.x = hidden.data(), .token_stride_x = dim, .num_tokens = kStates, .dim = dim, .weight = front.data(),
                                           .eps = eps, .y = fronted.data(), .token_stride_y = dim}));
        }
        op.x = in_front ? fronted.data() : hidden.data();
        op.weight = hidden_norm.data(), op.y = want.data() + dim, op.x_rows = by_index ? gpu_rows.data() : nullptr;
        GPU_OK(Backend().rms_norm(exec, op));
        params.y = got.data(), params.y_stride = 2 * dim;
        params.norm = norm.data(), params.hidden = hidden.data(), params.hidden_rows = op.x_rows;
        params.front_norm = in_front ? front.data() : nullptr, params.hidden_norm = hidden_norm.data(), params.eps = eps;
        if (by_index) params.upcoming = reinterpret_cast<const std::byte*>(hidden.data()), params.upcoming_bytes = kStates * dim * 4;
        ASSERT_TRUE(EmbedTakesNorms(params));
        GPU_OK(Backend().embed(exec, params));
        EXPECT_EQ(FirstBitDifference(got.Read(), want.Read()), "") << "way " << way;
        EXPECT_TRUE(got.Intact() && want.Intact());
      }
    }
  }
}

TEST_F(GpuEmbed, NormsOfShortRowsAreRefused) {
  const GpuArray<int32_t> ids(std::vector<int32_t>{0});
  const GpuArray<float> ones(std::vector<float>(512, 1.0f)), y(1024);
  const GpuWeight table(BigWeight(DType::kF16, 8, 512, 1));
  const Status status = FromCuda(Backend().embed(
      Gpu::Get().Exec(), {.token_ids = ids.data(), .num_tokens = 1, .table = table.view(), .y = y.data(), .y_stride = 1024, .norm = ones.data(),
                          .hidden = ones.data(), .hidden_norm = ones.data(), .eps = 1e-6f}));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
}

// Rows by index, whole float4s or not.
TEST_F(GpuEmbed, GatherRows) {
  const std::vector<int32_t> from = {4, -1, 0, 2}, to = {1, 0, -1, 3};
  for (const int64_t dim : {1, 7, 64, 1020, 7168, 20000}) {
    for (const int64_t shift : {0, 1}) {  // of the pointers
      for (const int way : {0, 1, 2, 3}) {
        SCOPED_TRACE(fmt::format("dim {} shift {} way {}", dim, shift, way));
        TestRng rng(static_cast<uint64_t>(dim));
        const std::vector<float> values = rng.NormalVector(5 * dim + shift);
        const GpuArray<float> src(values), dst(4 * dim + shift);
        const GpuArray<int32_t> gpu_from(from), gpu_to(to);
        GPU_OK(Backend().gather_rows(Gpu::Get().Exec(), {.src = src.data() + shift, .src_rows = (way & 1) != 0 ? gpu_from.data() : nullptr,
                                                         .dst = dst.data() + shift, .dst_rows = (way & 2) != 0 ? gpu_to.data() : nullptr,
                                                         .num_rows = 4, .dim = dim}));
        const std::vector<float> got = dst.Read();
        EXPECT_TRUE(dst.Intact());
        std::vector<int32_t> source(4, -1);  // of each row of dst
        for (int32_t i = 0; i < 4; ++i) {
          const int32_t row = (way & 2) != 0 ? to[static_cast<size_t>(i)] : i, what = (way & 1) != 0 ? from[static_cast<size_t>(i)] : i;
          if (row >= 0 && what >= 0) source[static_cast<size_t>(row)] = what;
        }
        for (int64_t i = 0; i < 4 * dim; ++i) {
          const int32_t what = source[static_cast<size_t>(i / dim)];
          const float value = got[static_cast<size_t>(i + shift)];
          if (what < 0) ASSERT_TRUE(IsPoison(value)) << i;
          else ASSERT_EQ(value, values[static_cast<size_t>(what * dim + i % dim + shift)]) << i;
        }
      }
    }
  }
}

TEST_F(GpuEmbed, UnknownTypesAreRefused) {
  const GpuArray<int32_t> ids(std::vector<int32_t>{0});
  const Status status = FromCuda(
      Backend().embed(Gpu::Get().Exec(), {.token_ids = ids.data(), .num_tokens = 1, .table = {.dtype = DType::kIQ2_XXS}}));
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace cachalot
