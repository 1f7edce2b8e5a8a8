// What decode kernels do beside their own work: bit for bit what the ops leave one after the other.
#include "gpu_matmul_testing.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/swiglu/swiglu.h"

namespace cachalot {
namespace {

class GpuFusion : public GpuTest {};

const CudaBackend& Backend() { return *Gpu::Get().backend; }
int NumSms() { return Gpu::Get().info.num_sms; }

struct Fused {
  bool norm, glu;
};
constexpr Fused kFusions[] = {{true, false}, {false, true}, {true, true}};

std::vector<float> NormWeight(int64_t k) {
  TestRng rng(71);
  return rng.NormalVector(k);
}

void Norm(const GpuArray<float>& x, int64_t rows, int64_t dim, const GpuArray<float>& weight, const GpuArray<float>& y) {
  GPU_OK(Backend().rms_norm(Gpu::Get().Exec(), {.x = x.data(), .token_stride_x = dim, .num_tokens = rows, .dim = dim,
                                                .weight = weight.data(), .eps = 1e-5f, .y = y.data(), .token_stride_y = dim}));
}
void Glu(const GpuArray<float>& products, int64_t rows, int64_t gates, const GpuArray<float>& y) {
  GPU_OK(Backend().swiglu(Gpu::Get().Exec(), {.gate = products.data(), .up = products.data() + gates, .x_stride = 2 * gates, .m = rows,
                                              .dim = gates, .y = y.data(), .y_stride = gates}));
}

void CheckDense(const GpuWeight& weight, int64_t m) {
  const int64_t n = weight.view().n, k = weight.view().k;
  if (!Chosen(m * n * k)) return;
  TestRng rng(static_cast<uint64_t>(m));
  const GpuArray<float> x(rng.NormalVector(m * k)), normed(m * k), norm_weight(NormWeight(k)), products(m * n), y(m * n / 2);
  Norm(x, m, k, norm_weight, normed);
  CudaMatmulParams params = {.x_stride = k, .m = m, .weight = weight.view()};
  const MatmulScratch scratch(Backend().matmul_workspace_bytes(params, NumSms()));
  const CudaExec exec = scratch.Exec(kMatmulModes[0]);
  for (const Fused& fused : kFusions) {
    SCOPED_TRACE(fmt::format("{} m {} n {} k {}{}{}", DTypeName(weight.view().dtype), m, n, k, fused.norm ? " norm" : "", fused.glu ? " glu" : ""));
    params.x = fused.norm ? normed.data() : x.data();
    params.y = products.data();
    params.y_stride = n;
    params.fusion = {};
    GPU_OK(Backend().matmul(exec, params));
    if (fused.glu) Glu(products, m, n / 2, y);
    const std::vector<float> want = fused.glu ? y.Read() : products.Read();
    GpuArray<float> out(static_cast<int64_t>(want.size()));
    params.x = x.data();
    params.y = out.data();
    params.y_stride = fused.glu ? n / 2 : n;
    params.fusion = {.norm_weight = fused.norm ? norm_weight.data() : nullptr, .norm_eps = 1e-5f, .glu = fused.glu};
    ASSERT_TRUE(Backend().matmul_fuses(exec, params));
    GPU_OK(Backend().matmul(exec, params));
    EXPECT_EQ(FirstBitDifference(out.Read(), want), "");
    EXPECT_TRUE(out.Intact());
  }
  EXPECT_TRUE(scratch.Intact() && x.Intact());
}

TEST_F(GpuFusion, MatmulsOfEveryFormat) {
  // Gates: fewer than a tile, odd, more than the blocks have room for in one pass.
  const std::pair<int64_t, int64_t> shapes[] = {{2, 768}, {34, 2048}, {1410, 1024}, {5632, 2048}, {9000, 768}, {96, 7168}};
  for (const DType dtype : kCudaMatmulTypes) {
    if (dtype == DType::kF32) continue;
    for (const auto& [n, k] : shapes) {
      const GpuWeight weight(BigWeight(dtype, n, k, 72));
      for (const int64_t m : {1, 2, 3, 4}) {
        CheckDense(weight, m);
        if (HasFatalFailure()) return;
      }
      EXPECT_TRUE(weight.Intact());
    }
  }
}

TEST_F(GpuFusion, ManyWarps) {
  GPU_OK(Backend().set_tune("gemv_code_warps=32"));
  for (const DType dtype : {DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_0, DType::kQ6_K}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{34, 2048}, {1410, 1024}, {600, 4096}, {28672, 768}}) {
      const GpuWeight weight(BigWeight(dtype, n, k, 72));
      for (const int64_t m : {1, 4}) CheckDense(weight, m);
    }
  }
  GPU_OK(Backend().set_tune(""));
}

TEST_F(GpuFusion, Fp8WithScalesOfEachRow) {
  const GpuWeight weight(BigWeight(DType::kFP8E4M3, 600, 1536, 73), true);
  for (const int64_t m : {1, 4}) CheckDense(weight, m);
}

TEST_F(GpuFusion, ExpertsOfEveryFormat) {
  constexpr int64_t kGates = 353, kK = 1024, kTokens = 3;
  constexpr int32_t kExperts = 7, kTopK = 4;
  // Pairs of tokens 0, 1, 2 by expert, none of the experts 1 and 5, and two pairs left out.
  const std::vector<int32_t> begin = {0, 2, 2, 5, 6, 9, 9, 10};
  const std::vector<int32_t> rows = {0, 2, 0, 1, 2, 1, 0, 1, 2, 0, -1, -1};
  constexpr int64_t kPairs = kTokens * kTopK;
  for (const DType dtype : kCudaMatmulTypes) {
    if (dtype == DType::kF32) continue;
    SCOPED_TRACE(DTypeName(dtype));
    std::vector<std::unique_ptr<GpuWeight>> weights;
    std::vector<const std::byte*> data;
    std::vector<const float*> scales;
    for (int32_t e = 0; e < kExperts; ++e) {
      weights.push_back(std::make_unique<GpuWeight>(BigWeight(dtype, 2 * kGates, kK, 80 + static_cast<uint64_t>(e))));
      data.push_back(weights.back()->view().data);
      scales.push_back(weights.back()->view().block_scales);
    }
    const int64_t k = weights[0]->view().k;
    TestRng rng(74);
    const GpuArray<float> x(rng.NormalVector(kTokens * k)), normed(kTokens * k), norm_weight(NormWeight(k));
    GpuArray<float> products(kPairs * 2 * kGates), y(kPairs * kGates), out(kPairs * kGates);
    const GpuArray<int32_t> gpu_begin(begin), gpu_rows(rows);
    const GpuArray<const std::byte*> gpu_data(data);
    const GpuArray<const float*> gpu_scales(scales);
    Norm(x, kTokens, k, norm_weight, normed);
    CudaMatrix shape = weights[0]->view();
    shape.data = nullptr;
    CudaMoeMatmulParams params = {.x = normed.data(), .x_stride = k, .x_rows = gpu_rows.data(), .expert_begin = gpu_begin.data(),
                                  .num_experts = kExperts, .max_pairs = kPairs, .top_k = kTopK, .weight = shape, .expert_data = gpu_data.data(),
                                  .expert_block_scales = dtype == DType::kFP8E4M3 ? gpu_scales.data() : nullptr, .y = products.data(),
                                  .y_stride = 2 * kGates};
    const MatmulScratch scratch(Backend().moe_matmul_workspace_bytes(params, NumSms()));
    const CudaExec exec = scratch.Exec(kMatmulModes[0]);
    GPU_OK(Backend().moe_matmul(exec, params));
    Glu(products, 10, kGates, y);
    const std::vector<float> want = y.Read();
    for (const bool norm : {false, true}) {
      params.x = norm ? x.data() : normed.data();
      params.y = out.data();
      params.y_stride = kGates;
      params.fusion = {.norm_weight = norm ? norm_weight.data() : nullptr, .norm_eps = 1e-5f, .glu = true};
      ASSERT_TRUE(Backend().moe_matmul_fuses(exec, params));
      out.Poison();
      GPU_OK(Backend().moe_matmul(exec, params));
      EXPECT_EQ(FirstBitDifference(out.Read(), want), "") << (norm ? "norm" : "");  // poison behind the pairs in both
    }
    EXPECT_TRUE(out.Intact() && scratch.Intact());
  }
}

TEST_F(GpuFusion, OnlyWhatTheDecodeKernelTakes) {
  const GpuWeight weight(BigWeight(DType::kF16, 64, 1024, 75)), f32(BigWeight(DType::kF32, 64, 1024, 76)), narrow(BigWeight(DType::kF16, 64, 512, 77));
  const GpuArray<float> x(std::vector<float>(16 * 1024, 1.0f)), ones(std::vector<float>(1024, 1.0f)), y(16 * 64);
  const MatmulScratch scratch(1 << 20);
  const CudaExec exec = scratch.Exec(kMatmulModes[0]);
  const CudaMatmulParams norm = {.x = x.data(), .x_stride = 1024, .m = 1, .weight = weight.view(), .y = y.data(), .y_stride = 64,
                                 .fusion = {.norm_weight = ones.data(), .norm_eps = 1e-6f}};
  CudaMatmulParams glu = norm;
  glu.fusion = {.glu = true};
  const auto refused = [&](const CudaExec& how, const CudaMatmulParams& params) {
    return !Backend().matmul_fuses(how, params) && FromCuda(Backend().matmul(how, params)).code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(Backend().matmul_fuses(exec, norm) && Backend().matmul_fuses(exec, glu));
  for (const CudaMatmulParams& params : {norm, glu}) {
    CudaMatmulParams other = params;
    other.m = params.fusion.glu ? 129 : 9;  // beyond 128 cuBLASLt takes them
    EXPECT_TRUE(refused(exec, other)) << "many rows";
    other = params;
    other.weight = f32.view();
    EXPECT_TRUE(refused(exec, other)) << "F32 weights";
    EXPECT_TRUE(refused(scratch.Exec(kMatmulModes[1]), params)) << "deterministic";
    EXPECT_TRUE(refused(scratch.Exec(kMatmulModes[3]), params)) << "F32 math";
    GPU_OK(Backend().set_tune("fuse=none"));
    EXPECT_TRUE(refused(exec, params)) << "fuse=none";
    GPU_OK(Backend().set_tune(""));
  }
  CudaMatmulParams other = norm;
  other.weight = narrow.view();
  EXPECT_TRUE(refused(exec, other)) << "rows that a warp norms alone";
  other = norm;
  other.x += 1;
  EXPECT_TRUE(refused(exec, other)) << "unaligned x";
  other = glu;
  other.accumulate = true;
  EXPECT_TRUE(refused(exec, other)) << "adding to y";
  other = glu;
  other.bias = ones.data();
  EXPECT_TRUE(refused(exec, other)) << "bias";
  other = glu;
  other.weight.n = 63;
  EXPECT_TRUE(refused(exec, other)) << "an odd number of rows";
}

// Experts beside a dense matmul: what each is alone.
void CheckPair(DType dtype, int64_t dense_n, int64_t experts_n, int64_t dense_k, int64_t experts_k, bool glu, int64_t tokens) {
  constexpr int32_t kExperts = 6, kTopK = 4;
  const int64_t pairs = tokens * kTopK;
  if (!Chosen(tokens * dense_n * dense_k + pairs * experts_n * experts_k)) return;
  const GpuWeight dense_weight(BigWeight(dtype, dense_n, dense_k, 120));
  std::vector<std::unique_ptr<GpuWeight>> weights;
  std::vector<const std::byte*> data;
  std::vector<const float*> scales;
  for (int32_t e = 0; e < kExperts; ++e) {
    weights.push_back(std::make_unique<GpuWeight>(BigWeight(dtype, experts_n, experts_k, 121 + static_cast<uint64_t>(e))));
    data.push_back(weights.back()->view().data);
    scales.push_back(weights.back()->view().block_scales);
  }
  dense_k = dense_weight.view().k, experts_k = weights[0]->view().k;
  SCOPED_TRACE(fmt::format("{} {} x {} beside {} x {}{}, {} tokens", DTypeName(dtype), dense_n, dense_k, experts_n, experts_k,
                           glu ? " glu" : "", tokens));
  // Two experts have none; the last pair is left out.
  std::vector<int32_t> begin = {0, 0, static_cast<int32_t>(tokens), static_cast<int32_t>(2 * tokens), static_cast<int32_t>(2 * tokens),
                                static_cast<int32_t>(3 * tokens), static_cast<int32_t>(pairs - 1)};
  std::vector<int32_t> rows(static_cast<size_t>(pairs));
  for (int64_t i = 0; i < pairs; ++i) rows[static_cast<size_t>(i)] = static_cast<int32_t>(i % tokens);
  TestRng rng(81);
  const GpuArray<float> dense_x(rng.NormalVector(tokens * dense_k)), experts_x(rng.NormalVector((glu ? tokens : pairs) * experts_k));
  const GpuArray<float> norm_weight(NormWeight(dense_k));
  const int64_t dense_width = glu ? dense_n / 2 : dense_n, experts_width = glu ? experts_n / 2 : experts_n;
  GpuArray<float> dense_y(tokens * dense_width), experts_y(pairs * experts_width);
  const GpuArray<int32_t> gpu_begin(begin), gpu_rows(rows);
  const GpuArray<const std::byte*> gpu_data(data);
  const GpuArray<const float*> gpu_scales(scales);
  const CudaFusion fusion = {.norm_weight = glu ? norm_weight.data() : nullptr, .norm_eps = 1e-5f, .glu = glu};
  CudaMatrix shape = weights[0]->view();
  shape.data = nullptr;
  const CudaMoeMatmulParams moe = {.x = experts_x.data(), .x_stride = experts_k, .x_rows = glu ? gpu_rows.data() : nullptr,
                                   .expert_begin = gpu_begin.data(), .num_experts = kExperts, .max_pairs = pairs, .top_k = kTopK,
                                   .weight = shape, .expert_data = gpu_data.data(),
                                   .expert_block_scales = dtype == DType::kFP8E4M3 ? gpu_scales.data() : nullptr, .y = experts_y.data(),
                                   .y_stride = experts_width, .fusion = fusion};
  const CudaMatmulParams matmul = {.x = dense_x.data(), .x_stride = dense_k, .m = tokens, .weight = dense_weight.view(),
                                   .y = dense_y.data(), .y_stride = dense_width, .fusion = fusion};
  const MatmulScratch scratch(1 << 20);
  const CudaExec exec = scratch.Exec(kMatmulModes[0]);
  GPU_OK(Backend().matmul(exec, matmul));
  GPU_OK(Backend().moe_matmul(exec, moe));
  const std::vector<float> want_dense = dense_y.Read(), want_experts = experts_y.Read();
  for (int run = 0; run < 2; ++run) {
    dense_y.Poison();
    experts_y.Poison();
    ASSERT_TRUE(Backend().moe_pair_fuses(exec, moe, matmul));
    GPU_OK(Backend().moe_pair(exec, moe, matmul));
    EXPECT_EQ(FirstBitDifference(dense_y.Read(), want_dense), "") << "dense";
    EXPECT_EQ(FirstBitDifference(experts_y.Read(), want_experts), "") << "experts";
  }
  EXPECT_TRUE(dense_y.Intact() && experts_y.Intact() && scratch.Intact());
}

TEST_F(GpuFusion, ExpertsBesideAMatmul) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kFP8E4M3, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K}) {
    for (const int64_t tokens : {1, 2, 4}) {
      CheckPair(dtype, 5632, 2816, 2048, 2048, true, tokens);  // DeepSeek-V2-Lite: gate/up, then down
      CheckPair(dtype, 2048, 2048, 2816, 1408, false, tokens);
      CheckPair(dtype, 34, 1410, 1024, 1024, true, tokens);
      CheckPair(dtype, 7168, 40, 2048, 2048, false, tokens);
      if (HasFatalFailure()) return;
    }
  }
}

// Of more rows by wgmma: as the ops one after the other but for where sums are cut; and the F16 copy is that of what is written.
void ExpectGlu(const std::vector<float>& got, const std::vector<float>& want, const std::vector<uint16_t>& half) {
  const Comparison compared = Compare(got, want, {1e-6, 1e-4, 2e-4, 1 - 1e-8});
  EXPECT_TRUE(compared.ok) << compared.message;
  for (size_t i = 0; i < got.size(); ++i) {
    if (IsPoison(got[i])) continue;
    ASSERT_EQ(half[i], F32ToF16(std::clamp(got[i], -65504.0f, 65504.0f))) << "copy of " << got[i] << " at " << i;
  }
}

TEST_F(GpuFusion, SwiGluOfManyRows) {
  const std::pair<int64_t, int64_t> shapes[] = {{32, 128}, {1410, 1024}, {5632, 2048}, {28672, 1024}};
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const auto& [n, k] : shapes) {
      const GpuWeight weight(BigWeight(dtype, n, k, 101));
      for (const int64_t m : {9, 16, 17, 40, 64, 100, 128}) {
        if (!Chosen(m * n * k)) continue;
        SCOPED_TRACE(fmt::format("{} m {} n {} k {}", DTypeName(dtype), m, n, k));
        TestRng rng(static_cast<uint64_t>(m));
        const GpuArray<float> x(rng.NormalVector(m * k)), products(m * n), y(m * n / 2), out(m * n / 2);
        const GpuArray<uint16_t> half(m * n / 2);
        CudaMatmulParams params = {.x = x.data(), .x_stride = k, .m = m, .weight = weight.view(), .y = products.data(), .y_stride = n};
        const MatmulScratch scratch(Backend().matmul_workspace_bytes(params, NumSms()));
        const CudaExec exec = scratch.Exec(kMatmulModes[0]);
        GPU_OK(Backend().matmul(exec, params));
        Glu(products, m, n / 2, y);
        params.y = out.data();
        params.y_stride = n / 2;
        params.y_half = {half.data(), n / 2};
        params.fusion = {.glu = true};
        if (Gpu::Get().info.compute_capability != 90) {
          EXPECT_FALSE(Backend().matmul_fuses(exec, params));
          continue;
        }
        ASSERT_TRUE(Backend().matmul_fuses(exec, params));
        GPU_OK(Backend().matmul(exec, params));
        const std::vector<float> got = out.Read();
        ExpectGlu(got, y.Read(), half.Read());
        GPU_OK(Backend().matmul(exec, params));
        EXPECT_EQ(FirstBitDifference(out.Read(), got), "");
        EXPECT_TRUE(out.Intact() && half.Intact() && scratch.Intact());
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(GpuFusion, SwiGluOfManyPairs) {
  if (Gpu::Get().info.compute_capability != 90) GTEST_SKIP() << "no wgmma";
  constexpr int64_t kGates = 353, kK = 1024, kTokens = 50;
  constexpr int32_t kExperts = 9, kTopK = 4;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<std::unique_ptr<GpuWeight>> weights;
    std::vector<const std::byte*> data;
    for (int32_t e = 0; e < kExperts; ++e) {
      weights.push_back(std::make_unique<GpuWeight>(BigWeight(dtype, 2 * kGates, kK, 110 + static_cast<uint64_t>(e))));
      data.push_back(weights.back()->view().data);
    }
    // Experts of 0 to 50 tokens; 17 pairs left out.
    constexpr int64_t kPairs = kTokens * kTopK;
    const std::vector<int32_t> begin = {0, 50, 50, 51, 67, 84, 117, 117, 150, kPairs - 17};
    std::vector<int32_t> rows(kPairs);
    for (int64_t i = 0; i < kPairs; ++i) rows[i] = static_cast<int32_t>(i * 7 % kTokens);
    TestRng rng(79);
    const GpuArray<float> x(rng.NormalVector(kTokens * kK));
    GpuArray<float> products(kPairs * 2 * kGates), y(kPairs * kGates), out(kPairs * kGates);
    const GpuArray<uint16_t> half(kPairs * kGates);
    const GpuArray<int32_t> gpu_begin(begin), gpu_rows(rows);
    const GpuArray<const std::byte*> gpu_data(data);
    CudaMatrix shape = weights[0]->view();
    shape.data = nullptr;
    CudaMoeMatmulParams params = {.x = x.data(), .x_stride = kK, .x_rows = gpu_rows.data(), .expert_begin = gpu_begin.data(),
                                  .num_experts = kExperts, .max_pairs = kPairs, .top_k = kTopK, .weight = shape, .expert_data = gpu_data.data(),
                                  .y = products.data(), .y_stride = 2 * kGates};
    const MatmulScratch scratch(Backend().moe_matmul_workspace_bytes(params, NumSms()));
    const CudaExec exec = scratch.Exec(kMatmulModes[0]);
    GPU_OK(Backend().moe_matmul(exec, params));
    Glu(products, begin.back(), kGates, y);
    params.y = out.data();
    params.y_stride = kGates;
    params.y_half = {half.data(), kGates};
    params.fusion = {.glu = true};
    ASSERT_TRUE(Backend().moe_matmul_fuses(exec, params));
    GPU_OK(Backend().moe_matmul(exec, params));
    ExpectGlu(out.Read(), y.Read(), half.Read());  // poison behind the pairs in both
    EXPECT_TRUE(out.Intact() && half.Intact() && scratch.Intact());
  }
}

// Feed-forward layers one after the other in a graph, where each kernel starts before the last one has ended.
TEST_F(GpuFusion, LayersInAGraphAreAsStepByStep) {
  constexpr int64_t kHidden = 2048, kGates = 1408;
  constexpr int kLayers = 8;
  for (const DType dtype : {DType::kBF16, DType::kQ4_K, DType::kFP8E4M3}) {
    std::vector<std::unique_ptr<GpuWeight>> ups, downs;
    for (int i = 0; i < kLayers; ++i) {
      ups.push_back(std::make_unique<GpuWeight>(BigWeight(dtype, 2 * kGates, kHidden, 90 + static_cast<uint64_t>(i))));
      downs.push_back(std::make_unique<GpuWeight>(BigWeight(dtype, kHidden, WholeBlocks(dtype, kGates), 190 + static_cast<uint64_t>(i))));
    }
    const int64_t inner = downs[0]->view().k;
    for (const int64_t m : {1, 4}) {
      if (!Chosen(20 * kLayers * m * kHidden * 3 * kGates)) continue;
      SCOPED_TRACE(fmt::format("{} m {}", DTypeName(dtype), m));
      TestRng rng(78);
      const std::vector<float> start = rng.NormalVector(m * kHidden);
      GpuArray<float> x(start), inside(m * inner);
      inside.Write(std::vector<float>(static_cast<size_t>(m * inner)));
      const GpuArray<float> norm_weight(NormWeight(kHidden));
      const MatmulScratch scratch(std::max(Backend().matmul_workspace_bytes({.m = m, .weight = ups[0]->view()}, NumSms()),
                                           Backend().matmul_workspace_bytes({.m = m, .weight = downs[0]->view()}, NumSms())));
      const CudaExec exec = scratch.Exec(kMatmulModes[0]);
      const auto layer = [&](int i) {
        GPU_OK(Backend().matmul(exec, {.x = x.data(), .x_stride = kHidden, .m = m, .weight = ups[static_cast<size_t>(i)]->view(),
                                       .y = inside.data(), .y_stride = inner,
                                       .fusion = {.norm_weight = norm_weight.data(), .norm_eps = 1e-5f, .glu = true}}));
        GPU_OK(Backend().matmul(exec, {.x = inside.data(), .x_stride = inner, .m = m, .weight = downs[static_cast<size_t>(i)]->view(),
                                       .y = x.data(), .y_stride = kHidden, .accumulate = true}));
      };
      for (int i = 0; i < kLayers; ++i) {
        layer(i);
        Gpu::Get().Synchronize();
      }
      const std::vector<float> want = x.Read();
      GpuGraph graph([&] {
        for (int i = 0; i < kLayers; ++i) layer(i);
      });
      for (int replay = 0; replay < 20; ++replay) {
        x.Write(start);
        graph.Launch();
        ASSERT_EQ(FirstBitDifference(x.Read(), want), "") << "replay " << replay;
      }
    }
  }
}

}  // namespace
}  // namespace cachalot
