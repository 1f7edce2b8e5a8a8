// The matmuls of heads and of experts, and the experts' combination, on the GPU against the CPU.
#include "gpu_matmul_testing.h"

namespace cachalot {
namespace {

class GpuHeadMatmul : public GpuTest {};
class GpuMoeMatmul : public GpuTest {};

const CudaBackend& Backend() { return *Gpu::Get().backend; }
int NumSms() { return Gpu::Get().info.num_sms; }

const Tolerance& ToleranceOf(const MatmulMode& mode) {
  static const Tolerance exact = ToleranceFor(OpClass::kMatmul);
  return mode.math == CudaMath::kF32 ? exact : kExactXTolerance;
}

// Rows [first, first + rows) of a weight for the reference.
PackedMatrix PackPart(const TestWeight& weight, int64_t first, int64_t rows) {
  MatrixPart part = weight.part();
  part.rows = rows;
  part.data += first * DTypeBytes(weight.dtype, weight.k);
  return PackMatrix({&part, 1}, weight.k, {.isa = Isa::kRef}).value();
}

struct HeadCase {
  int64_t m;
  int32_t heads;
  int64_t n, k, gap;
};

void CheckHeads(const HeadCase& c, const TestWeight& weight, const GpuWeight& gpu_weight) {
  SCOPED_TRACE(fmt::format("{} m {} heads {} n {} k {} gap {}", DTypeName(weight.dtype), c.m, c.heads, c.n, c.k, c.gap));
  TestRng rng(static_cast<uint64_t>(c.m + c.n));
  const int64_t x_stride = c.heads * (c.k + c.gap) + c.gap, y_stride = c.heads * (c.n + c.gap);
  const std::vector<float> x = BF16Vector(&rng, c.m * x_stride);
  std::vector<float> want(c.m * y_stride, std::bit_cast<float>(0xffffffffu));
  for (int32_t h = 0; h < c.heads; ++h) {
    const PackedMatrix packed = PackPart(weight, h * c.n, c.n);
    Matmul(MatmulReference(), {.x = x.data() + h * (c.k + c.gap), .x_stride = x_stride, .m = c.m, .weight = &packed,
                               .y = want.data() + h * (c.n + c.gap), .y_stride = y_stride});
  }
  GpuArray<float> gpu_x(x), y(c.m * y_stride);
  const CudaHeadMatmulParams params = {.x = gpu_x.data(), .x_stride = x_stride, .x_head_stride = c.k + c.gap, .m = c.m,
                                       .num_heads = c.heads, .n = c.n, .weight = gpu_weight.view(), .y = y.data(),
                                       .y_stride = y_stride, .y_head_stride = c.n + c.gap};
  const MatmulScratch scratch(Backend().head_matmul_workspace_bytes(params, NumSms()));
  for (const MatmulMode& mode : kMatmulModes) {
    SCOPED_TRACE(mode.name);
    y.Poison();
    GPU_OK(Backend().head_matmul(scratch.Exec(mode), params));
    const std::vector<float> got = y.Read();
    const Comparison compared = Compare(got, want, ToleranceOf(mode));  // gaps are NaN in both
    EXPECT_TRUE(compared.ok) << compared.message;
    y.Poison();
    GPU_OK(Backend().head_matmul(scratch.Exec(mode), params));
    EXPECT_EQ(FirstBitDifference(y.Read(), got), "");
  }
  EXPECT_TRUE(gpu_x.Intact() && y.Intact() && scratch.Intact());
}

TEST_F(GpuHeadMatmul, AgainstTheReference) {
  const HeadCase shapes[] = {{0, 1, 1, 32, 0},    {0, 3, 15, 64, 1},   {0, 16, 128, 512, 0},
                             {0, 16, 512, 128, 4}, {0, 5, 130, 96, 0}, {0, 128, 64, 32, 0}, {0, 7, 33, 1440, 0}};
  for (DType dtype : kCudaMatmulTypes) {
    if (dtype == DType::kFP8E4M3) continue;
    for (HeadCase c : shapes) {
      const TestWeight weight = BigWeight(dtype, c.heads * c.n, c.k, 21);
      c.k = weight.k;
      const GpuWeight gpu_weight(weight);
      for (int64_t m : {1, 2, 3, 4, 8, 9, 17, 33, 65, 200}) {
        if (m == 200 && c.n * c.k * c.heads > 500'000) continue;
        c.m = m;
        if (Chosen(m * c.heads * c.n * c.k)) CheckHeads(c, weight, gpu_weight);
      }
      EXPECT_TRUE(gpu_weight.Intact());
    }
  }
}

TEST_F(GpuHeadMatmul, OddLengths) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int64_t k : {1, 17, 33}) {
      const TestWeight weight(dtype, 4 * 19, k, 22);
      const GpuWeight gpu_weight(weight);
      for (int64_t m : {1, 12}) CheckHeads({m, 4, 19, k, 0}, weight, gpu_weight);
    }
  }
}

TEST_F(GpuHeadMatmul, DeterministicRowsAreIndependent) {
  constexpr int64_t kRows = 150, kN = 128, kK = 512;
  constexpr int32_t kHeads = 8;
  for (DType dtype : {DType::kBF16, DType::kQ8_0, DType::kQ6_K}) {
    const TestWeight weight = BigWeight(dtype, kHeads * kN, kK, 23);
    const GpuWeight gpu_weight(weight);
    TestRng rng(24);
    const GpuArray<float> x(rng.NormalVector(kRows * kHeads * kK)), y(kRows * kHeads * kN);
    CudaHeadMatmulParams params = {.x = x.data(), .x_stride = kHeads * kK, .x_head_stride = kK, .m = kRows, .num_heads = kHeads,
                                   .n = kN, .weight = gpu_weight.view(), .y = y.data(), .y_stride = kHeads * kN, .y_head_stride = kN};
    const MatmulScratch scratch(Backend().head_matmul_workspace_bytes(params, NumSms()));
    GPU_OK(Backend().head_matmul(scratch.Exec(kMatmulModes[1]), params));
    const std::vector<float> all = y.Read();
    for (int64_t rows : {1, 8, 33, 100}) {
      const GpuArray<float> part(rows * kHeads * kN);
      params.x = x.data() + 10 * kHeads * kK;
      params.m = rows;
      params.y = part.data();
      GPU_OK(Backend().head_matmul(scratch.Exec(kMatmulModes[1]), params));
      EXPECT_EQ(FirstBitDifference(part.Read(), std::span(all).subspan(10 * kHeads * kN, rows * kHeads * kN)), "") << rows;
    }
  }
}

// Which experts tokens go to, as MoeSort leaves it.
struct Routing {
  int32_t num_experts, top_k;
  int64_t tokens;
  std::vector<int32_t> begin, rows;
};

enum class Spread { kRandom, kOneExpert, kSomeLeftOut };

Routing MakeRouting(int32_t num_experts, int32_t top_k, int64_t tokens, Spread spread) {
  Routing routing{num_experts, top_k, tokens, {}, {}};
  TestRng rng(static_cast<uint64_t>(num_experts * 100 + tokens));
  std::vector<std::vector<int32_t>> of(num_experts);
  for (int64_t t = 0; t < tokens; ++t) {
    if (spread == Spread::kSomeLeftOut && t % 3 == 1) continue;
    const std::vector<int32_t> order = rng.Permutation(num_experts);
    for (int32_t j = 0; j < top_k; ++j) {
      of[spread == Spread::kOneExpert ? (num_experts / 2 + j) % num_experts : order[j]].push_back(static_cast<int32_t>(t));
    }
  }
  for (const auto& rows : of) {
    routing.begin.push_back(static_cast<int32_t>(routing.rows.size()));
    routing.rows.insert(routing.rows.end(), rows.begin(), rows.end());
  }
  routing.begin.push_back(static_cast<int32_t>(routing.rows.size()));
  return routing;
}

// Eight weights stand for any number of experts.
struct Experts {
  static constexpr int kDistinct = 8;
  std::vector<TestWeight> weights;
  std::vector<std::unique_ptr<GpuWeight>> gpu;
  std::vector<PackedMatrix> packed;

  Experts(DType dtype, int64_t n, int64_t k) {
    weights.reserve(kDistinct);
    for (int e = 0; e < kDistinct; ++e) {
      weights.push_back(BigWeight(dtype, n, k, 31 + static_cast<uint64_t>(e)));
      gpu.push_back(std::make_unique<GpuWeight>(weights.back()));
      packed.push_back(weights.back().Pack(Isa::kRef));
    }
  }
};

void CheckExperts(const Experts& experts, const Routing& routing, bool gather, int64_t gap) {
  const TestWeight& shape = experts.weights[0];
  const int64_t n = shape.n, k = shape.k, max_pairs = routing.tokens * routing.top_k;
  if (!Chosen(max_pairs * n * k)) return;
  SCOPED_TRACE(fmt::format("{} n {} k {} {} tokens top {} of {}{} gap {}, {} pairs", DTypeName(shape.dtype), n, k,
                           routing.tokens, routing.top_k, routing.num_experts, gather ? " gathered" : "", gap, routing.rows.size()));
  TestRng rng(static_cast<uint64_t>(max_pairs));
  const int64_t x_stride = k + gap, y_stride = n + gap;
  const std::vector<float> x = BF16Vector(&rng, (gather ? routing.tokens : max_pairs) * x_stride);
  std::vector<float> want(max_pairs * y_stride, std::bit_cast<float>(0xffffffffu));
  std::vector<const std::byte*> data;
  std::vector<const float*> scales;
  std::vector<MatmulGroup> groups;
  for (int32_t e = 0; e < routing.num_experts; ++e) {
    const CudaMatrix& view = experts.gpu[e % Experts::kDistinct]->view();
    const int32_t begin = routing.begin[e];
    data.push_back(view.data);
    scales.push_back(view.block_scales);
    groups.push_back({.weight = &experts.packed[e % Experts::kDistinct], .m = routing.begin[e + 1] - begin,
                      .x = gather ? x.data() : x.data() + begin * x_stride, .x_stride = x_stride,
                      .x_rows = gather ? routing.rows.data() + begin : nullptr, .y = want.data() + begin * y_stride,
                      .y_stride = y_stride});
  }
  GroupedMatmul(MatmulReference(), {.groups = groups});
  std::vector<int32_t> rows = routing.rows;
  rows.resize(max_pairs, -1);  // as poison
  GpuArray<float> gpu_x(x), y(max_pairs * y_stride);
  const GpuArray<int32_t> begin(routing.begin), gpu_rows(rows);
  const GpuArray<const std::byte*> gpu_data(data);
  const GpuArray<const float*> gpu_scales(scales);
  CudaMatrix weight = experts.gpu[0]->view();
  weight.data = nullptr;
  const bool fp8 = weight.dtype == DType::kFP8E4M3;
  const CudaMoeMatmulParams params = {.x = gpu_x.data(), .x_stride = x_stride, .x_rows = gather ? gpu_rows.data() : nullptr,
                                      .expert_begin = begin.data(), .num_experts = routing.num_experts, .max_pairs = max_pairs,
                                      .top_k = routing.top_k, .weight = weight, .expert_data = gpu_data.data(),
                                      .expert_block_scales = fp8 ? gpu_scales.data() : nullptr, .y = y.data(), .y_stride = y_stride};
  const MatmulScratch scratch(Backend().moe_matmul_workspace_bytes(params, NumSms()));
  for (const MatmulMode& mode : kMatmulModes) {
    SCOPED_TRACE(mode.name);
    y.Poison();
    GPU_OK(Backend().moe_matmul(scratch.Exec(mode), params));
    const std::vector<float> got = y.Read();
    const Comparison compared = Compare(got, want, ToleranceOf(mode));  // what no pair has is NaN in both
    EXPECT_TRUE(compared.ok) << compared.message;
    y.Poison();
    GPU_OK(Backend().moe_matmul(scratch.Exec(mode), params));
    EXPECT_EQ(FirstBitDifference(y.Read(), got), "");
  }
  EXPECT_TRUE(gpu_x.Intact() && y.Intact() && scratch.Intact());
}

// A test for each type: a tool that prepares every kernel may take them side by side.
class GpuMoeMatmulTypes : public GpuTest, public testing::WithParamInterface<DType> {};
INSTANTIATE_TEST_SUITE_P(All, GpuMoeMatmulTypes, testing::ValuesIn(kCudaMatmulTypes),
                         [](const auto& type) { return std::string(DTypeName(type.param)); });

TEST_P(GpuMoeMatmulTypes, AgainstTheReference) {
  const std::pair<int64_t, int64_t> shapes[] = {{96, 64}, {130, 1408}, {300, 128}, {15, 2048}};
  for (const auto& [n, k] : shapes) {
    const Experts experts(GetParam(), n, k);
    int at = 0;
    for (const bool gather : {true, false}) {
      for (const Spread spread : {Spread::kRandom, Spread::kOneExpert, Spread::kSomeLeftOut}) {
        const int64_t gap = ++at % 3 == 0 ? 1 : 0;
        CheckExperts(experts, MakeRouting(1, 1, 5, spread), gather, gap);
        CheckExperts(experts, MakeRouting(4, 2, 1, spread), gather, gap);
        CheckExperts(experts, MakeRouting(600, 6, 1, spread), gather, gap);
        CheckExperts(experts, MakeRouting(3, 1, 11, spread), gather, gap);
        CheckExperts(experts, MakeRouting(64, 6, 7, spread), gather, gap);
        CheckExperts(experts, MakeRouting(256, 8, 3, spread), gather, gap);
        CheckExperts(experts, MakeRouting(64, 6, 16, spread), gather, gap);
        CheckExperts(experts, MakeRouting(8, 2, 65, spread), gather, gap);
        CheckExperts(experts, MakeRouting(5, 1, 200, spread), gather, gap);
        CheckExperts(experts, MakeRouting(64, 6, 200, spread), gather, gap);
      }
    }
  }
}

TEST_F(GpuMoeMatmul, DeterministicPairsAreIndependent) {
  constexpr int64_t kN = 200, kK = 1536, kTokens = 100;
  constexpr int32_t kExperts = 3;
  for (DType dtype : {DType::kBF16, DType::kFP8E4M3, DType::kQ4_0, DType::kQ4_K, DType::kQ3_K}) {
    const Experts experts(dtype, kN, kK);
    const Routing routing = MakeRouting(kExperts, 1, kTokens, Spread::kRandom);
    TestRng rng(41);
    const std::vector<float> x = rng.NormalVector(kTokens * kK);
    std::vector<const std::byte*> data;
    std::vector<const float*> scales;
    for (int32_t e = 0; e < kExperts; ++e) {
      data.push_back(experts.gpu[e]->view().data);
      scales.push_back(experts.gpu[e]->view().block_scales);
    }
    const GpuArray<const std::byte*> gpu_data(data);
    const GpuArray<const float*> gpu_scales(scales);
    const auto run = [&](std::span<const int32_t> begin, const float* from, int64_t pairs, std::vector<float>* out) {
      const GpuArray<int32_t> gpu_begin(begin);
      const GpuArray<float> gpu_x(std::span<const float>(from, static_cast<size_t>(pairs * kK))), y(pairs * kN);
      const CudaMoeMatmulParams params = {.x = gpu_x.data(), .x_stride = kK, .expert_begin = gpu_begin.data(), .num_experts = kExperts,
                                          .max_pairs = pairs, .top_k = 1, .weight = experts.gpu[0]->view(), .expert_data = gpu_data.data(),
                                          .expert_block_scales = dtype == DType::kFP8E4M3 ? gpu_scales.data() : nullptr,
                                          .y = y.data(), .y_stride = kN};
      const MatmulScratch scratch(Backend().moe_matmul_workspace_bytes(params, NumSms()));
      GPU_OK(Backend().moe_matmul(scratch.Exec(kMatmulModes[1]), params));
      *out = y.Read();
    };
    std::vector<float> all, one;
    run(routing.begin, x.data(), kTokens, &all);
    for (int32_t e = 0; e < kExperts; ++e) {  // one pair alone
      const int32_t pair = routing.begin[e + 1] - 1;
      std::vector<int32_t> begin(kExperts + 1, 0);
      std::fill(begin.begin() + e + 1, begin.end(), 1);
      run(begin, x.data() + pair * kK, 1, &one);
      EXPECT_EQ(FirstBitDifference(one, std::span(all).subspan(pair * kN, kN)), "") << DTypeName(dtype) << " expert " << e;
    }
  }
}

TEST_F(GpuMoeMatmul, CombineAddsInTheOrderOfTheExperts) {
  for (const int64_t dim : {1, 30, 2048}) {
    for (const int64_t gap : {0, 3}) {
      constexpr int64_t kTokens = 37;
      constexpr int32_t kTopK = 6;
      TestRng rng(51);
      const int64_t stride = dim + gap;
      std::vector<float> y = rng.NormalVector(kTokens * kTopK * stride), residual = rng.NormalVector(kTokens * stride);
      const std::vector<float> weights = rng.NormalVector(kTokens * kTopK);
      std::vector<int32_t> pairs = rng.Permutation(kTokens * kTopK);
      std::vector<float> want = residual;
      for (int64_t t = 0; t < kTokens; ++t) {
        int32_t* of = pairs.data() + t * kTopK;
        std::sort(of, of + kTopK);
        std::fill(of + kTopK - t % 7 % kTopK, of + kTopK, -1);
        for (int64_t i = 0; i < dim; ++i) {
          double sum = 0;
          for (int j = 0; j < kTopK && of[j] >= 0; ++j) sum += double{weights[of[j]]} * y[of[j] * stride + i];
          want[t * stride + i] = static_cast<float>(want[t * stride + i] + sum);
        }
      }
      const GpuArray<float> gpu_y(y), gpu_weights(weights), extra(rng.NormalVector(kTokens * stride));
      const GpuArray<int32_t> gpu_pairs(pairs);
      for (const bool has_extra : {false, true}) {
        const GpuArray<float> gpu_residual(residual);
        GPU_OK(Backend().moe_combine(Gpu::Get().Exec(), {.y = gpu_y.data(), .y_stride = stride, .pair_weights = gpu_weights.data(),
                                                         .token_pairs = gpu_pairs.data(), .num_tokens = kTokens, .top_k = kTopK,
                                                         .dim = dim, .residual = gpu_residual.data(), .residual_stride = stride,
                                                         .extra = has_extra ? extra.data() : nullptr, .extra_stride = stride}));
        std::vector<float> sums = want;
        const std::vector<float> more = extra.Read();
        for (int64_t t = 0; has_extra && t < kTokens; ++t) {
          for (int64_t i = 0; i < dim; ++i) sums[t * stride + i] += more[t * stride + i];
        }
        const Comparison compared = Compare(gpu_residual.Read(), sums, ToleranceFor(OpClass::kMatmul));
        EXPECT_TRUE(compared.ok) << dim << ": " << compared.message;
        EXPECT_TRUE(gpu_residual.Intact());
      }
      EXPECT_TRUE(gpu_y.Intact());
    }
  }
}

}  // namespace
}  // namespace cachalot
