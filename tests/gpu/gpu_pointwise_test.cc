// RmsNorm, SwiGlu and CopyHeads on the GPU against the CPU's.
#include "gpu_testing.h"
#include "kernels/head_matmul/head_matmul.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/swiglu/swiglu.h"

namespace cachalot {
namespace {

class GpuRmsNorm : public GpuTest {};
class GpuSwiGlu : public GpuTest {};
class GpuCopyHeads : public GpuTest {};

const CudaBackend& Backend() { return *Gpu::Get().backend; }

struct NormShape {
  int64_t tokens, heads, dim, head_gap, token_gap;
};

std::vector<float> RunNorm(const NormShape& s, std::span<const float> input, std::span<const float> weight, bool in_place,
                           bool on_gpu) {
  const int64_t head_stride = s.dim + s.head_gap, token_stride = s.heads * head_stride + s.token_gap;
  const int64_t count = s.tokens * token_stride;
  RmsNormParams params = {.token_stride_x = token_stride,
                          .head_stride_x = head_stride,
                          .num_tokens = s.tokens,
                          .num_heads = s.heads,
                          .dim = s.dim,
                          .eps = 1e-5f,
                          .token_stride_y = token_stride,
                          .head_stride_y = head_stride};
  if (!on_gpu) {
    std::vector<float> y(static_cast<size_t>(count), std::bit_cast<float>(0xffffffffu));
    if (in_place) y.assign(input.begin(), input.end());
    params.x = in_place ? y.data() : input.data();
    params.weight = weight.data();
    params.y = y.data();
    RmsNorm(TestContext(Isa::kRef), params);
    return y;
  }
  const GpuArray<float> x(input), y(count), gpu_weight(weight);
  params.x = x.data();
  params.weight = gpu_weight.data();
  params.y = in_place ? x.data() : y.data();
  GPU_EXPECT_OK(Backend().rms_norm(Gpu::Get().Exec(), params));
  EXPECT_TRUE(x.Intact() && y.Intact() && gpu_weight.Intact());
  return in_place ? x.Read() : y.Read();
}

TEST_F(GpuRmsNorm, AgainstTheReference) {
  const NormShape shapes[] = {{1, 1, 1, 0, 0},     {3, 1, 7, 5, 3},    {2, 3, 8, 0, 0},      {1, 1, 31, 0, 1},   {5, 4, 64, 8, 100},
                              {2, 1, 129, 0, 0},   {33, 1, 576, 0, 0}, {1, 1, 7168, 0, 0},   {7, 32, 128, 0, 8}, {300, 1, 96, 0, 0},
                              {2, 1, 16384, 0, 4}, {5, 1, 512, 0, 64}, {70, 1, 4096, 0, 12}, {4, 2, 2049, 1, 1}, {9, 1, 1536, 0, 576}};
  for (const NormShape& s : shapes) {
    SCOPED_TRACE(fmt::format("[{}, {}, {}] gaps {} {}", s.tokens, s.heads, s.dim, s.head_gap, s.token_gap));
    TestRng rng(static_cast<uint64_t>(s.dim));
    const int64_t count = s.tokens * (s.heads * (s.dim + s.head_gap) + s.token_gap);
    const std::vector<float> input = rng.NormalVector(count, 3.0f), weight = rng.NormalVector(s.dim);
    for (bool in_place : {false, true}) {
      const std::vector<float> want = RunNorm(s, input, weight, in_place, false);
      const std::vector<float> got = RunNorm(s, input, weight, in_place, true);
      const Comparison c = Compare(got, want, ToleranceFor(OpClass::kNorm));
      EXPECT_TRUE(c.ok) << c.message;
      EXPECT_EQ(FirstBitDifference(RunNorm(s, input, weight, in_place, true), got), "");
    }
  }
}

TEST_F(GpuRmsNorm, ARowAloneHasTheSameBits) {
  for (int64_t dim : {96, 4096, 577}) {
    TestRng rng(3);
    const std::vector<float> input = rng.NormalVector(64 * dim), weight = rng.NormalVector(dim);
    const std::vector<float> all = RunNorm({64, 1, dim, 0, 0}, input, weight, false, true);
    for (int64_t t : {0, 37, 63}) {
      const std::span<const float> row(input.data() + t * dim, static_cast<size_t>(dim));
      // dim 577: a row alone begins at another alignment.
      EXPECT_EQ(FirstBitDifference(RunNorm({1, 1, dim, 0, 0}, row, weight, false, true),
                                   std::span<const float>(all.data() + t * dim, static_cast<size_t>(dim))),
                "")
          << dim;
    }
  }
}

// Rows taken by index are those of a copy; -1: the row of y stays.
TEST_F(GpuRmsNorm, RowsByIndex) {
  const std::vector<int32_t> rows = {3, -1, 0, 3, 6};
  const auto count = static_cast<int64_t>(rows.size());
  for (const int64_t dim : {7, 96, 2048}) {  // a value at a time, a warp a row, a block a row
    TestRng rng(17);
    const std::vector<float> input = rng.NormalVector(7 * dim), weight = rng.NormalVector(dim);
    const std::vector<float> all = RunNorm({7, 1, dim, 0, 0}, input, weight, false, true);
    const GpuArray<float> x(input), gpu_weight(weight), y(count * dim);
    const GpuArray<int32_t> gpu_rows(rows);
    GPU_OK(Backend().rms_norm(Gpu::Get().Exec(), {.x = x.data(), .token_stride_x = dim, .num_tokens = count, .dim = dim, .weight = gpu_weight.data(),
                                                  .eps = 1e-5f, .y = y.data(), .token_stride_y = dim, .x_rows = gpu_rows.data()}));
    const std::vector<float> got = y.Read();
    for (int64_t i = 0; i < count; ++i) {
      const std::vector<float> poison(static_cast<size_t>(dim), std::bit_cast<float>(0xffffffffu));
      const std::span<const float> want = rows[i] < 0 ? std::span<const float>(poison) : std::span(all).subspan(rows[i] * dim, dim);
      EXPECT_EQ(FirstBitDifference(std::span(got).subspan(i * dim, dim), want), "") << "row " << i << " of " << dim;
    }
    EXPECT_TRUE(y.Intact());
  }
}

TEST_F(GpuRmsNorm, EmptyBatchLaunchesNothing) {
  GPU_OK(Backend().rms_norm(Gpu::Get().Exec(), {.num_tokens = 0, .dim = 8}));
  GPU_OK(Backend().swiglu(Gpu::Get().Exec(), {.m = 0, .dim = 8}));
}

TEST_F(GpuSwiGlu, AgainstTheReference) {
  struct Shape {
    int64_t m, dim, gap;
  };
  for (const Shape& s : {Shape{1, 1, 0}, {3, 7, 2}, {5, 64, 0}, {2, 1000, 4}, {64, 14336, 0}, {1, 2049, 1}, {700, 96, 32}}) {
    for (bool in_place : {false, true}) {
      SCOPED_TRACE(fmt::format("[{}, {}] gap {}{}", s.m, s.dim, s.gap, in_place ? " in place" : ""));
      const int64_t stride = 2 * s.dim + s.gap;
      TestRng rng(static_cast<uint64_t>(s.dim));
      std::vector<float> x = rng.NormalVector(s.m * stride, 4.0f);
      x[0] = -200.0f;  // exp overflows
      const int64_t y_stride = in_place ? stride : s.dim + s.gap;
      std::vector<float> want = in_place ? x : std::vector<float>(s.m * y_stride, std::bit_cast<float>(0xffffffffu));
      SwiGlu(TestContext(Isa::kRef), {.gate = in_place ? want.data() : x.data(),
                                      .up = (in_place ? want.data() : x.data()) + s.dim,
                                      .x_stride = stride,
                                      .m = s.m,
                                      .dim = s.dim,
                                      .y = want.data(),
                                      .y_stride = y_stride});
      const GpuArray<float> gpu_x(x), gpu_y(s.m * y_stride);
      const GpuArray<float>& result = in_place ? gpu_x : gpu_y;
      GPU_OK(Backend().swiglu(Gpu::Get().Exec(), {.gate = gpu_x.data(),
                                                  .up = gpu_x.data() + s.dim,
                                                  .x_stride = stride,
                                                  .m = s.m,
                                                  .dim = s.dim,
                                                  .y = result.data(),
                                                  .y_stride = y_stride}));
      EXPECT_TRUE(gpu_x.Intact() && gpu_y.Intact());
      const Comparison c = Compare(result.Read(), want, ToleranceFor(OpClass::kPointwise));
      EXPECT_TRUE(c.ok) << c.message;
    }
  }
}

TEST_F(GpuCopyHeads, MovesHeadsAndNothingElse) {
  struct Shape {
    int64_t m;
    int32_t heads, dim;
    int64_t x_gap, y_gap;
  };
  for (const Shape& s : {Shape{1, 16, 64, 128, 512}, {1, 1, 1, 0, 0}, {3, 5, 7, 2, 9}, {64, 128, 64, 128, 512}, {300, 16, 16, 4, 3}}) {
    const int64_t x_head = s.dim + s.x_gap, y_head = s.dim + s.y_gap;
    TestRng rng(11);
    const std::vector<float> x = rng.NormalVector(s.m * s.heads * x_head);
    std::vector<float> want(static_cast<size_t>(s.m * s.heads * y_head), std::bit_cast<float>(0xffffffffu));
    for (int64_t at = 0; at < s.m * s.heads; ++at) std::copy_n(x.begin() + at * x_head, s.dim, want.begin() + at * y_head);
    const GpuArray<float> gpu_x(x), y(static_cast<int64_t>(want.size()));
    GPU_OK(Backend().copy_heads(Gpu::Get().Exec(), {.x = gpu_x.data(), .x_stride = s.heads * x_head, .x_head_stride = x_head, .m = s.m,
                                                    .num_heads = s.heads, .dim = s.dim, .y = y.data(), .y_stride = s.heads * y_head,
                                                    .y_head_stride = y_head}));
    EXPECT_EQ(FirstBitDifference(y.Read(), want), "") << s.m << " rows of " << s.heads << " heads of " << s.dim;
    EXPECT_TRUE(y.Intact());
  }
}

}  // namespace
}  // namespace cachalot
