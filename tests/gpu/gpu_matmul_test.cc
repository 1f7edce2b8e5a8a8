// The dense matmul on the GPU against the CPU's definition: every format, way to run and corner of shape.
#include "gpu_matmul_testing.h"
#include "kernels/rms_norm/rms_norm.h"

namespace cachalot {
namespace {

class GpuMatmul : public GpuTest {};

const CudaBackend& Backend() { return *Gpu::Get().backend; }

struct Case {
  int64_t m, n, k;
  int64_t x_gap = 0, y_gap = 0;
  bool bias = false, accumulate = false, row_scales = false;
  int64_t blas_rows = 128;  // rows above which cuBLASLt multiplies, for which codes become F16
};

std::vector<float> Products(const Case& c, const TestWeight& weight, const std::vector<float>& x) {
  std::vector<float> y(c.m * c.n);
  const PackedMatrix packed = weight.Pack(Isa::kRef);
  Matmul(MatmulReference(), {.x = x.data(), .x_stride = c.k + c.x_gap, .m = c.m, .weight = &packed, .y = y.data(), .y_stride = c.n});
  return y;
}

// y without its gaps.
std::vector<float> Reference(const Case& c, std::vector<float> y, const std::vector<float>& bias, const std::vector<float>& before) {
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      const double sum = double{y[i * c.n + j]} + (c.bias ? double{bias[j]} : 0.0);
      y[i * c.n + j] = static_cast<float>(c.accumulate ? sum + double{before[i * (c.n + c.y_gap) + j]} : sum);
    }
  }
  return y;
}

// The values of y, row by row, without the gaps.
std::vector<float> Rows(const Case& c, const std::vector<float>& y) {
  std::vector<float> out;
  for (int64_t i = 0; i < c.m; ++i) {
    out.insert(out.end(), y.begin() + i * (c.n + c.y_gap), y.begin() + i * (c.n + c.y_gap) + c.n);
  }
  return out;
}

// `products`: x Wᵀ of the case without bias and what y held before, filled by the first and used by the next of the same m.
void Check(Case c, const TestWeight& weight, const GpuWeight& gpu_weight, bool every_mode = true, std::vector<float>* products = nullptr) {
  c.k = weight.k;
  if (!Chosen(c.m * c.n * c.k)) return;
  SCOPED_TRACE(fmt::format("{} m {} n {} k {} gaps {} {}{}{}{}", DTypeName(weight.dtype), c.m, c.n, c.k, c.x_gap, c.y_gap,
                           c.bias ? " bias" : "", c.accumulate ? " accumulate" : "", c.row_scales ? " row scales" : ""));
  TestRng rng(static_cast<uint64_t>(c.m * 31 + c.n * 7 + c.k));
  const int64_t y_count = c.m * (c.n + c.y_gap);
  const std::vector<float> x = BF16Vector(&rng, c.m * (c.k + c.x_gap)), bias = rng.NormalVector(c.n);
  const std::vector<float> before = c.accumulate ? rng.NormalVector(y_count)
                                                 : std::vector<float>(y_count, std::bit_cast<float>(0xffffffffu));
  std::vector<float> of_case;
  if (products == nullptr) products = &of_case;
  if (products->empty()) *products = Products(c, weight, x);
  const std::vector<float> want = Reference(c, *products, bias, before);
  GpuArray<float> gpu_x(x), gpu_bias(bias), y(y_count);
  CudaMatmulParams params = {.x = gpu_x.data(),
                             .x_stride = c.k + c.x_gap,
                             .m = c.m,
                             .weight = gpu_weight.view(),
                             .bias = c.bias ? gpu_bias.data() : nullptr,
                             .y = y.data(),
                             .y_stride = c.n + c.y_gap,
                             .accumulate = c.accumulate};
  const MatmulScratch scratch(Backend().matmul_workspace_bytes(params, Gpu::Get().info.num_sms));
  for (const MatmulMode& mode : kMatmulModes) {
    if (!every_mode && !(mode.math == CudaMath::kFast && mode.counters)) continue;
    SCOPED_TRACE(mode.name);
    std::vector<float> first;
    for (int run = 0; run < 2; ++run) {
      y.Write(before);
      GPU_OK(Backend().matmul(scratch.Exec(mode), params));
      const std::vector<float> got = y.Read();
      if (run == 1) {
        EXPECT_EQ(FirstBitDifference(got, first), "");
        break;
      }
      first = got;
      const Tolerance tolerance = mode.math == CudaMath::kF32 ? ToleranceFor(OpClass::kMatmul) : FastTolerance(weight.dtype, c.m, c.blas_rows);
      const Comparison compared = Compare(Rows(c, got), want, tolerance);
      EXPECT_TRUE(compared.ok) << compared.message;
      for (int64_t i = 0; i < c.m; ++i) {
        for (int64_t j = c.n; j < c.n + c.y_gap; ++j) {
          const int64_t at = i * (c.n + c.y_gap) + j;
          ASSERT_EQ(std::bit_cast<uint32_t>(got[at]), std::bit_cast<uint32_t>(before[at])) << "a gap was written";
        }
      }
    }
  }
  EXPECT_TRUE(gpu_x.Intact() && gpu_bias.Intact() && y.Intact());
  EXPECT_TRUE(scratch.Intact());
}

constexpr int64_t kRowCounts[] = {1, 2, 3, 7, 8, 9, 16, 17, 33, 64, 65, 127, 200};

TEST_F(GpuMatmul, SmallShapesOfEveryFormat) {
  const std::pair<int64_t, int64_t> shapes[] = {{1, 32}, {15, 64}, {16, 96}, {17, 576}, {130, 128}, {1000, 288}};
  for (DType dtype : kCudaMatmulTypes) {
    int at = 0;
    for (const auto& [n, k] : shapes) {
      const TestWeight weight = BigWeight(dtype, n, k, 3);
      const GpuWeight gpu_weight(weight);
      for (int64_t m : kRowCounts) {
        ++at;
        Check({.m = m, .n = n, .k = k, .x_gap = at % 3 == 0 ? 1 : at % 3 == 1 ? 0 : 4, .y_gap = at % 4 == 3 ? 3 : 0,
               .bias = at % 2 == 0, .accumulate = at % 5 < 2},
              weight, gpu_weight);
        if (testing::Test::HasFatalFailure()) return;
      }
      EXPECT_TRUE(gpu_weight.Intact());
    }
  }
}

TEST_F(GpuMatmul, LongShapesOfEveryFormat) {
  struct Shape {
    int64_t n, k;
    std::vector<int64_t> m;
    bool even_cut = false;  // only where 16-bit weights are cut into tiles that end together
  };
  const Shape shapes[] = {{4096, 1024, {1, 8, 16}}, {4096, 576, {9, 64}},       {1000, 2048, {4, 33, 200}}, {130, 7168, {1, 17, 65}},
                          {2816, 1024, {1, 64}},    {513, 1408, {2, 127}},      {20000, 256, {1, 3, 32, 64, 100}},   {4096, 256, {129}},
                          {384, 4096, {5, 300}},    {64, 14336, {1, 12, 100}},   {60, 18432, {1, 3, 4}},
                          // Cut evenly on 132 SMs: k in four and in three, whole tiles in one round (20000, too) and in two.
                          {4096, 2048, {50, 100}, true},  {6144, 1536, {64, 128}, true},    {28672, 128, {64}, true},     {34000, 64, {70, 128}, true}};
  for (DType dtype : kCudaMatmulTypes) {
    for (const Shape& shape : shapes) {
      if (shape.even_cut && dtype != DType::kF16 && dtype != DType::kBF16) continue;
      const TestWeight weight = BigWeight(dtype, shape.n, shape.k, 4);
      const GpuWeight gpu_weight(weight);
      for (int64_t m : shape.m) {
        std::vector<float> products;
        Check({.m = m, .n = shape.n, .k = weight.k}, weight, gpu_weight, shape.n * shape.k * m < 100'000'000, &products);
        Check({.m = m, .n = shape.n, .k = weight.k, .y_gap = 4, .bias = true, .accumulate = true}, weight, gpu_weight, false, &products);
      }
    }
  }
}

// Dense 16-bit weights of 9 to 128 rows: k whole and in two parts, tiles in one round and in three, rows of W and of k that no box
// holds whole, y that takes one value at a time.
TEST_F(GpuMatmul, CutsOfBulkCopies) {
  struct Shape {
    int64_t n, k;
    std::vector<int64_t> m;
  };
  const Shape shapes[] = {{1603, 1160, {9, 24, 63, 65, 128}}, {3170, 1032, {9, 24, 63, 65, 128}}, {6150, 200, {9, 24, 63, 65, 128}},
                          {9001, 136, {9, 24, 63, 65, 128}},  {20002, 72, {9, 24, 63, 65, 128}},  {34000, 264, {24, 65}}};
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    int at = 0;
    for (const auto& [n, k, rows] : shapes) {
      const TestWeight weight = BigWeight(dtype, n, k, 8);
      const GpuWeight gpu_weight(weight);
      for (const int64_t m : rows) {
        ++at;
        Check({.m = m, .n = n, .k = weight.k, .x_gap = at % 2, .y_gap = at % 3, .bias = at % 4 < 2, .accumulate = at % 3 != 1}, weight,
              gpu_weight, false);
      }
      EXPECT_TRUE(gpu_weight.Intact());
    }
  }
}

TEST_F(GpuMatmul, OddLengths) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kFP8E4M3}) {
    for (int64_t k : {1, 3, 7, 33, 63, 100, 577, 1001}) {
      for (int64_t n : {1, 37, 300}) {
        const TestWeight weight(dtype, n, k, 5);
        const GpuWeight gpu_weight(weight);
        for (int64_t m : {1, 3, 5, 19, 70, 150}) Check({.m = m, .n = n, .k = k, .x_gap = (m + k) % 2}, weight, gpu_weight);
      }
    }
  }
}

// Few rows of x: lengths that end within what a warp loads, x at any address, more rows of W than one reduction covers, and k
// beyond what shared memory holds of x.
TEST_F(GpuMatmul, DecodeShapesOfEveryFormat) {
  struct Shape {
    int64_t n, k;
  };
  const Shape shapes[] = {{1, 32},      {7, 160},     {133, 1440},   {265, 2080},   {531, 4128},
                          {129, 7136},  {4099, 96},   {30001, 64},   {67, 14368},   {19, 20512}};
  for (DType dtype : kCudaMatmulTypes) {
    int at = 0;
    for (const auto& [n, k] : shapes) {
      const TestWeight weight = BigWeight(dtype, n, k, 12);
      const GpuWeight gpu_weight(weight);
      for (int64_t m : {1, 2, 3, 4}) {
        ++at;
        Check({.m = m, .n = n, .k = k, .x_gap = at % 3 == 0 ? 1 : at % 3 == 1 ? 0 : 4, .y_gap = at % 4 == 3 ? 3 : 0,
               .bias = at % 2 == 0, .accumulate = at % 5 < 2},
              weight, gpu_weight, n * k < 1'000'000);
        if (testing::Test::HasFatalFailure()) return;
      }
      EXPECT_TRUE(gpu_weight.Intact());
    }
  }
}

// device/cuda/cuda_tune.h
TEST_F(GpuMatmul, SettingsForMeasuringAreRightToo) {
  for (const char* settings : {"gemv_rows=8,gemv_dense_k=16384", "gemv_alone=all,gemv_dense_k=16384", "gemv_alone=none,gemv_code_k=64", "gemv_code_warps=32", "gemv_code_warps=32,gemv_rows=8",
                               "late=all", "late=norm", "blas_rows=8",
                               "wgmma_rows=224", "wgmma_rows=112"}) {
    SCOPED_TRACE(settings);
    GPU_OK(Backend().set_tune(settings));
    for (DType dtype : {DType::kF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ6_K}) {
      const TestWeight weight = BigWeight(dtype, 1100, 4096, 13);
      const GpuWeight gpu_weight(weight);
      const int64_t blas_rows = std::string_view(settings) == "blas_rows=8" ? 8 : 128;
      for (int64_t m : {1, 5, 8, 64}) Check({.m = m, .n = weight.n, .k = weight.k, .blas_rows = blas_rows}, weight, gpu_weight, false);
    }
    GPU_OK(Backend().set_tune(""));
  }
  EXPECT_EQ(FromCuda(Backend().set_tune("speed=2")).code(), StatusCode::kInvalidArgument);
}

// Routers: few rows in F32, by dot products or by tiles, whichever is faster.
TEST_F(GpuMatmul, RoutersOfManyTokens) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{8, 4096}, {64, 2048}, {256, 7168}}) {
    const TestWeight weight = BigWeight(DType::kF32, n, k, 15);
    const GpuWeight gpu_weight(weight);
    for (int64_t m : {1, 16, 17, 64, 100, 512}) Check({.m = m, .n = n, .k = k}, weight, gpu_weight, false);
  }
}

TEST_F(GpuMatmul, Fp8WithScalesOfEachRow) {
  for (int64_t k : {96, 128, 1408}) {
    const TestWeight weight(DType::kFP8E4M3, 300, k, 6);
    const GpuWeight gpu_weight(weight, true);
    for (int64_t m : {1, 4, 9, 65, 200}) Check({.m = m, .n = 300, .k = k, .row_scales = true}, weight, gpu_weight);
  }
}

// Bits of a row do not depend on how many others there are.
TEST_F(GpuMatmul, DeterministicRowsAreIndependent) {
  const std::pair<int64_t, int64_t> shapes[] = {{1000, 2048}, {4096, 576}, {64, 7168}, {40, 96}};
  for (DType dtype : kCudaMatmulTypes) {
    for (const auto& [n, wanted_k] : shapes) {
      constexpr int64_t kRows = 300;
      if (!Chosen(kRows * n * wanted_k)) continue;
      const TestWeight weight = BigWeight(dtype, n, wanted_k, 7);
      const GpuWeight gpu_weight(weight);
      TestRng rng(8);
      const int64_t k = weight.k;
      const GpuArray<float> x(rng.NormalVector(kRows * k)), y(kRows * n);
      for (const CudaMath math : {CudaMath::kFast, CudaMath::kF32}) {
        CudaMatmulParams params = {.x = x.data(), .x_stride = k, .m = kRows, .weight = gpu_weight.view(), .y = y.data(), .y_stride = n};
        const MatmulScratch scratch(Backend().matmul_workspace_bytes(params, Gpu::Get().info.num_sms));
        const CudaExec exec = scratch.Exec({"", math, true, true});
        GPU_OK(Backend().matmul(exec, params));
        const std::vector<float> all = y.Read();
        const std::pair<int64_t, int64_t> parts[] = {{0, 1}, {299, 1}, {5, 8}, {130, 9}, {20, 17}, {40, 64}, {7, 65}, {100, 128}, {1, 200}};
        for (const auto& [first, rows] : parts) {
          const GpuArray<float> part(rows * n);
          params.x = x.data() + first * k;
          params.m = rows;
          params.y = part.data();
          GPU_OK(Backend().matmul(exec, params));
          EXPECT_EQ(FirstBitDifference(part.Read(), std::span(all).subspan(first * n, rows * n)), "")
              << DTypeName(dtype) << " n " << n << " k " << k << " rows " << first << " + " << rows
              << (math == CudaMath::kF32 ? " F32" : "");
        }
        EXPECT_TRUE(scratch.Intact());
      }
    }
  }
}

// x is rounded to nearest, once; to F16 within its range.
TEST_F(GpuMatmul, XIsRoundedToNearest) {
  constexpr int64_t kN = 200, kK = 512;
  for (DType dtype : kCudaMatmulTypes) {
    if (dtype == DType::kF32) continue;
    const TestWeight weight(dtype, kN, kK, 9);
    const GpuWeight gpu_weight(weight);
    const PackedMatrix packed = weight.Pack(Isa::kRef);
    for (int64_t m : {1, 8, 20, 150}) {
      TestRng rng(10);
      const std::vector<float> x = rng.NormalVector(m * kK);
      std::vector<float> rounded = x, want(m * kN);
      for (float& value : rounded) {
        value = dtype == DType::kBF16 ? BF16ToF32(F32ToBF16(value)) : F16ToF32(F32ToF16(value));
      }
      Matmul(MatmulReference(), {.x = rounded.data(), .x_stride = kK, .m = m, .weight = &packed, .y = want.data(), .y_stride = kN});
      const GpuArray<float> gpu_x(x), y(m * kN);
      const CudaMatmulParams params = {.x = gpu_x.data(), .x_stride = kK, .m = m, .weight = gpu_weight.view(), .y = y.data(), .y_stride = kN};
      const MatmulScratch scratch(Backend().matmul_workspace_bytes(params, Gpu::Get().info.num_sms));
      GPU_OK(Backend().matmul(scratch.Exec(kMatmulModes[0]), params));
      const Comparison compared = Compare(y.Read(), want, FastTolerance(dtype, m));
      EXPECT_TRUE(compared.ok) << DTypeName(dtype) << " m " << m << ": " << compared.message;
    }
  }
}

TEST_F(GpuMatmul, OutliersBecomeF16sLargest) {
  constexpr int64_t kN = 16, kK = 256;
  for (DType dtype : kCudaMatmulTypes) {
    if (dtype == DType::kF32 || dtype == DType::kBF16) continue;
    const TestWeight weight(dtype, kN, kK, 11);
    const GpuWeight gpu_weight(weight);
    const PackedMatrix packed = weight.Pack(Isa::kRef);
    for (int64_t m : {1, 16, 150}) {
      std::vector<float> x(m * kK, 1e6f), clamped(m * kK, 65504.0f), want(m * kN);
      x[3] = -1e30f, clamped[3] = -65504.0f;
      Matmul(MatmulReference(), {.x = clamped.data(), .x_stride = kK, .m = m, .weight = &packed, .y = want.data(), .y_stride = kN});
      const GpuArray<float> gpu_x(x), y(m * kN);
      const CudaMatmulParams params = {.x = gpu_x.data(), .x_stride = kK, .m = m, .weight = gpu_weight.view(), .y = y.data(), .y_stride = kN};
      const MatmulScratch scratch(Backend().matmul_workspace_bytes(params, Gpu::Get().info.num_sms));
      GPU_OK(Backend().matmul(scratch.Exec(kMatmulModes[0]), params));
      const Comparison compared = Compare(y.Read(), want, FastTolerance(dtype, m));
      EXPECT_TRUE(compared.ok) << DTypeName(dtype) << " m " << m << ": " << compared.message;
    }
  }
}

// Kernels start before those in front of them have ended. Each output here is the next one's x (now and then normalised, so
// that it stays in range), and every call shares the scratch: one that does not wait for what it needs gives other bits than
// when all is done one by one.
void CheckChain(int64_t width, std::span<const DType> types, int num_links, std::initializer_list<int64_t> row_counts) {
  constexpr int kReplays = 20;
  std::vector<std::unique_ptr<GpuWeight>> weights;
  for (int i = 0; i < num_links; ++i) {
    weights.push_back(std::make_unique<GpuWeight>(BigWeight(types[static_cast<size_t>(i) % types.size()], width, width, 60 + i)));
  }
  const GpuArray<float> ones(std::vector<float>(width, 1.0f));
  for (int64_t m : row_counts) {
    if (!Chosen(6 * kReplays * num_links * m * width * width)) continue;
    TestRng rng(static_cast<uint64_t>(m));
    const GpuArray<float> x(rng.NormalVector(m * width)), even(m * width), odd(m * width);
    CudaMatmulParams params = {.x = x.data(), .x_stride = width, .m = m, .weight = weights[0]->view(), .y = odd.data(), .y_stride = width};
    int64_t bytes = 0;
    for (const auto& weight : weights) {
      params.weight = weight->view();
      bytes = std::max(bytes, Backend().matmul_workspace_bytes(params, Gpu::Get().info.num_sms));
    }
    const MatmulScratch scratch(bytes);
    const auto link = [&](int i) {
      params.weight = weights[static_cast<size_t>(i)]->view();
      params.x = i == 0 ? x.data() : (i % 2 == 0 ? even : odd).data();
      params.y = (i % 2 == 0 ? odd : even).data();
      GPU_OK(Backend().matmul(scratch.Exec(kMatmulModes[0]), params));
      if (i % 3 != 2) return;
      GPU_OK(Backend().rms_norm(Gpu::Get().Exec(), {.x = params.y, .token_stride_x = width, .num_tokens = m, .dim = width,
                                                    .weight = ones.data(), .y = params.y, .token_stride_y = width}));
    };
    const GpuArray<float>& last = num_links % 2 == 0 ? even : odd;
    for (int i = 0; i < num_links; ++i) {
      link(i);
      GPU_OK(Backend().stream_synchronize(Gpu::Get().stream));
    }
    const std::vector<float> want = last.Read();
    GpuGraph graph([&] {
      for (int i = 0; i < num_links; ++i) link(i);
    });
    for (int replay = 0; replay < kReplays; ++replay) {
      for (int i = 0; i < 5; ++i) graph.Enqueue();
      graph.Launch();
      ASSERT_EQ(FirstBitDifference(last.Read(), want), "") << "m " << m << " replay " << replay;
    }
    EXPECT_TRUE(scratch.Intact());
  }
}

TEST_F(GpuMatmul, ChainsInAGraphAreAsStepByStep) { CheckChain(1024, kCudaMatmulTypes, 18, {1, 4, 8, 16, 50, 100, 130}); }

TEST_F(GpuMatmul, ChainsOfEvenCutsInAGraphAreAsStepByStep) {
  const DType types[] = {DType::kF16};
  CheckChain(4096, types, 4, {64, 100});
}

TEST_F(GpuMatmul, WhatIsNotCoveredIsRefused) {
  const GpuArray<std::byte> bytes(std::vector<std::byte>(4096));
  const GpuArray<float> y(64);
  CudaMatmulParams params = {.x = y.data(), .x_stride = 32, .m = 1, .weight = {.dtype = DType::kIQ2_XXS, .n = 1, .k = 256, .data = bytes.data()}, .y = y.data()};
  EXPECT_EQ(FromCuda(Backend().matmul(Gpu::Get().Exec(), params)).code(), StatusCode::kUnsupported);
  params.weight.dtype = DType::kQ8_0;
  params.weight.k = 33;
  EXPECT_EQ(FromCuda(Backend().matmul(Gpu::Get().Exec(), params)).code(), StatusCode::kInvalidArgument);
  params.weight.dtype = DType::kQ4_K;
  params.weight.k = 128;
  EXPECT_EQ(FromCuda(Backend().matmul(Gpu::Get().Exec(), params)).code(), StatusCode::kInvalidArgument) << "half a block";
  params.weight.dtype = DType::kQ8_0;
  params.weight.k = 32;
  params.m = 9;
  EXPECT_EQ(FromCuda(Backend().matmul(Gpu::Get().Exec(), params)).code(), StatusCode::kInvalidArgument) << "no workspace";
  params.m = 0;
  GPU_OK(Backend().matmul(Gpu::Get().Exec(), params));
}

}  // namespace
}  // namespace cachalot
