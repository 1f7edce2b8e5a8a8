// Embed on the GPU: the rows of the table, bit for bit.
#include "gpu_matmul_testing.h"
#include "kernels/embed/embed_cuda.h"

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

TEST_F(GpuEmbed, UnknownTypesAreRefused) {
  const GpuArray<int32_t> ids(std::vector<int32_t>{0});
  const Status status = FromCuda(
      Backend().embed(Gpu::Get().Exec(), {.token_ids = ids.data(), .num_tokens = 1, .table = {.dtype = DType::kIQ2_XXS}}));
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace cachalot
