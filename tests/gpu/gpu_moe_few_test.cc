// The experts of a few tokens in one launch, against sums in double precision of the same F16 values; and the same bits in one launch
// and in two, at every run, in a graph, whatever other tokens there are, and with the router in the same launch or in its own.
#include <cmath>

#include "gpu_matmul_testing.h"
#include "kernels/moe_matmul/moe_few_cuda.h"
#include "kernels/moe_route/moe_gate_cuda.h"
#include "kernels/rms_norm/rms_norm.h"

namespace cachalot {
namespace {

class GpuMoeFew : public GpuTest {
 protected:
  void TearDown() override {
    if (Gpu::Get().backend != nullptr) GPU_EXPECT_OK(Gpu::Get().backend->set_tune(""));
  }
};

const CudaBackend& Backend() { return *Gpu::Get().backend; }

struct Case {
  const char* name;
  DType dtype;
  int64_t dim, gates, shared_gates;
  int32_t experts, top_k;
  bool row_scales = false;
};

// Experts are windows of one large matrix, 128 rows apart, so that few values have to be made.
constexpr int64_t kStep = 128;

struct Weights {
  const Case& c;
  TestWeight up, down, shared_up, shared_down;
  std::vector<float> up_values, down_values, shared_up_values, shared_down_values;
  GpuWeight gpu_up, gpu_down, gpu_shared_up, gpu_shared_down;
  std::vector<const std::byte*> up_data, down_data;
  std::vector<const float*> up_scales, down_scales;

  explicit Weights(const Case& c)
      : c(c),
        up(BigWeight(c.dtype, 2 * c.gates + kStep * (c.experts - 1), c.dim, 201)),
        down(BigWeight(c.dtype, c.dim + kStep * (c.experts - 1), c.gates, 202)),
        shared_up(BigWeight(c.dtype, std::max<int64_t>(2 * c.shared_gates, 1), c.dim, 203)),
        shared_down(BigWeight(c.dtype, c.dim, std::max<int64_t>(c.shared_gates, 1), 204)),
        up_values(up.Decoded()), down_values(down.Decoded()), shared_up_values(shared_up.Decoded()), shared_down_values(shared_down.Decoded()),
        gpu_up(up, c.row_scales), gpu_down(down, c.row_scales), gpu_shared_up(shared_up, c.row_scales),
        gpu_shared_down(shared_down, c.row_scales) {
    const auto window = [&](const CudaMatrix& w, int32_t e, auto* data, auto* scales) {
      data->push_back(w.data + e * kStep * CudaRowsOf(w.dtype, w.k).row_bytes);
      scales->push_back(w.block_scales == nullptr ? nullptr : w.block_scales + e * (kStep / w.block_scale_rows) * ((w.k + 127) / 128));
    };
    for (int32_t e = 0; e < c.experts; ++e) {
      window(gpu_up.view(), e, &up_data, &up_scales);
      window(gpu_down.view(), e, &down_data, &down_scales);
    }
  }
  bool Intact() const { return gpu_up.Intact() && gpu_down.Intact() && gpu_shared_up.Intact() && gpu_shared_down.Intact(); }
};

// Who goes where, by expert and then token: token t to top_k experts from 3 t on, so that some have several tokens and most have one.
struct Routing {
  std::vector<int32_t> begin, rows;
  std::vector<float> weights;
};
enum class Spread { kApart, kTogether, kSomeLeftOut, kNone };
Routing RouteTo(const Case& c, int64_t tokens, Spread spread, int64_t first_token = 0) {
  Routing routing;
  routing.begin.push_back(0);
  for (int32_t e = 0; e < c.experts; ++e) {
    for (int64_t t = 0; t < tokens; ++t) {
      if (spread == Spread::kNone || (spread == Spread::kSomeLeftOut && t % 2 == 1)) continue;
      for (int32_t j = 0; j < c.top_k; ++j) {
        const int64_t token = t + first_token;
        const int64_t to = spread == Spread::kTogether ? j : (token * 3 + j) % c.experts;
        if (to != e) continue;
        routing.rows.push_back(static_cast<int32_t>(t));
        routing.weights.push_back(0.25f + 0.125f * static_cast<float>((token * 5 + e) % 9));
      }
    }
    routing.begin.push_back(static_cast<int32_t>(routing.rows.size()));
  }
  routing.rows.resize(static_cast<size_t>(tokens * c.top_k), -1);  // as poison
  routing.weights.resize(static_cast<size_t>(tokens * c.top_k), NAN);
  return routing;
}

// y[n] = sum over k of w[first + n, k] * x[k], n < rows.
std::vector<double> Products(const std::vector<float>& w, int64_t first, int64_t rows, const float* x, int64_t k) {
  std::vector<double> y(static_cast<size_t>(rows));
  AllThreads()->ParallelFor((rows + 63) / 64, [&](int64_t part, int) {
    for (int64_t n = part * 64; n < std::min(rows, part * 64 + 64); ++n) {
      const float* row = w.data() + (first + n) * k;
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += double{row[i]} * x[i];
      y[static_cast<size_t>(n)] = sum;
    }
  });
  return y;
}
std::vector<float> Rounded(std::vector<float> values) {
  for (float& v : values) v = F16ToF32(F32ToF16(std::clamp(v, -65504.0f, 65504.0f)));
  return values;
}
std::vector<float> FromHalves(const std::vector<uint16_t>& halves) {
  std::vector<float> values;
  for (const uint16_t half : halves) values.push_back(half == 0xffff ? std::bit_cast<float>(0xffffffffu) : F16ToF32(half));
  return values;
}

// A call's memory, and what it starts from.
struct FewCall {
  const Weights& weights;
  const Case& c;
  int64_t tokens, pairs;
  Routing routing;
  std::vector<float> residual_before;
  GpuArray<float> residual, normed, norm_weight, pair_weights;
  GpuArray<int32_t> begin, rows;
  GpuArray<const std::byte*> up_data, down_data;
  GpuArray<const float*> up_scales, down_scales;
  GpuArray<uint16_t> h, shared_h;
  MatmulScratch scratch{256};

  FewCall(const Weights& weights, int64_t tokens, const Routing& routing, const std::vector<float>& residual_before)
      : weights(weights), c(weights.c), tokens(tokens), pairs(tokens * c.top_k), routing(routing), residual_before(residual_before),
        residual(residual_before), normed(tokens * c.dim), norm_weight(TestRng(206).NormalVector(c.dim)), pair_weights(routing.weights),
        begin(routing.begin), rows(routing.rows), up_data(weights.up_data), down_data(weights.down_data), up_scales(weights.up_scales),
        down_scales(weights.down_scales), h(pairs * c.gates), shared_h(std::max<int64_t>(tokens * c.shared_gates, 1)) {}

  CudaExec Exec() const { return scratch.Exec(kMatmulModes[0]); }
  CudaMoeFewParams Params(bool norm) const {
    CudaMoeFewParams params = {.x = norm ? residual.data() : normed.data(),
                               .x_stride = c.dim,
                               .norm = {.norm_weight = norm ? norm_weight.data() : nullptr, .norm_eps = 1e-6f},
                               .num_tokens = tokens,
                               .top_k = c.top_k,
                               .num_experts = c.experts,
                               .expert_begin = begin.data(),
                               .token_rows = rows.data(),
                               .pair_weights = pair_weights.data(),
                               .up = weights.gpu_up.view(),
                               .down = weights.gpu_down.view(),
                               .up_data = up_data.data(),
                               .down_data = down_data.data(),
                               .up_scales = c.dtype == DType::kFP8E4M3 ? up_scales.data() : nullptr,
                               .down_scales = c.dtype == DType::kFP8E4M3 ? down_scales.data() : nullptr,
                               .h = h.data(),
                               .shared_h = shared_h.data(),
                               .residual = residual.data(),
                               .residual_stride = c.dim};
    params.up.n = 2 * c.gates, params.down.n = c.dim;
    params.up.data = params.down.data = nullptr;
    params.up.block_scales = params.down.block_scales = nullptr;
    if (c.shared_gates > 0) params.shared_up = weights.gpu_shared_up.view(), params.shared_down = weights.gpu_shared_down.view();
    return params;
  }
  // What is left in the residual stream.
  std::vector<float> Call(bool norm) {
    residual.Write(residual_before);
    h.Poison();
    shared_h.Poison();
    const Status status = FromCuda(Backend().moe_few(Exec(), Params(norm)));
    EXPECT_TRUE(status.ok()) << status.ToString();
    return residual.Read();
  }
  bool Intact() const {
    return residual.Intact() && normed.Intact() && h.Intact() && shared_h.Intact() && scratch.Intact() && rows.Intact() && begin.Intact();
  }
};

void ExpectReference(FewCall* run, const std::vector<float>& got) {
  const Case& c = run->c;
  const std::vector<float> x = Rounded(run->normed.Read());
  const std::vector<float> h = FromHalves(run->h.Read()), shared_h = FromHalves(run->shared_h.Read());
  std::vector<float> want_h(h.size(), std::bit_cast<float>(0xffffffffu)), want_shared(shared_h.size(), std::bit_cast<float>(0xffffffffu));
  const auto activate = [&](const std::vector<float>& w, int64_t first, int64_t gates, int64_t token, float* to) {
    const std::vector<double> products = Products(w, first, 2 * gates, x.data() + token * c.dim, c.dim);
    for (int64_t g = 0; g < gates; ++g) {
      const double gate = products[static_cast<size_t>(g)], up = products[static_cast<size_t>(gates + g)];
      to[g] = static_cast<float>(std::clamp(gate / (1 + std::exp(-gate)) * up, -65504.0, 65504.0));
    }
  };
  // Down from the F16 values that gate/up left.
  std::vector<double> want(run->residual_before.begin(), run->residual_before.end());
  for (int32_t e = 0; e < c.experts; ++e) {
    for (int32_t pair = run->routing.begin[e]; pair < run->routing.begin[e + 1]; ++pair) {
      const int64_t token = run->routing.rows[pair];
      activate(run->weights.up_values, e * kStep, c.gates, token, want_h.data() + pair * c.gates);
      const std::vector<double> y = Products(run->weights.down_values, e * kStep, c.dim, h.data() + pair * c.gates, c.gates);
      for (int64_t n = 0; n < c.dim; ++n) want[token * c.dim + n] += double{run->routing.weights[pair]} * y[static_cast<size_t>(n)];
    }
  }
  for (int64_t token = 0; c.shared_gates > 0 && token < run->tokens; ++token) {
    activate(run->weights.shared_up_values, 0, c.shared_gates, token, want_shared.data() + token * c.shared_gates);
    const std::vector<double> y = Products(run->weights.shared_down_values, 0, c.dim, shared_h.data() + token * c.shared_gates, c.shared_gates);
    for (int64_t n = 0; n < c.dim; ++n) want[token * c.dim + n] += y[static_cast<size_t>(n)];
  }
  // Half a step of F16 beside what sums may differ by.
  constexpr Tolerance kHalf = {1e-6, 6e-4, 2e-4, 1 - 1e-6};
  const Comparison of_h = Compare(h, want_h, kHalf), of_shared = Compare(shared_h, want_shared, kHalf);
  EXPECT_TRUE(of_h.ok) << "h: " << of_h.message;
  EXPECT_TRUE(of_shared.ok) << "h of the shared expert: " << of_shared.message;
  const Comparison compared = Compare(got, std::vector<float>(want.begin(), want.end()), kExactXTolerance);
  EXPECT_TRUE(compared.ok) << compared.message;
}

constexpr const char* kWays[] = {"experts=one", "experts=two"};

void Check(const Weights& weights, int64_t tokens, Spread spread) {
  const Case& c = weights.c;
  const int64_t work = tokens * (c.top_k * c.gates + c.shared_gates) * c.dim * 3;
  if (!Chosen(work)) return;
  SCOPED_TRACE(fmt::format("{}: {} tokens, spread {}", c.name, tokens, static_cast<int>(spread)));
  TestRng rng(static_cast<uint64_t>(tokens) + 205);
  FewCall run(weights, tokens, RouteTo(c, tokens, spread), rng.NormalVector(tokens * c.dim));
  GPU_OK(Backend().rms_norm(run.Exec(), {.x = run.residual.data(), .token_stride_x = c.dim, .num_tokens = tokens, .dim = c.dim,
                                         .weight = run.norm_weight.data(), .eps = 1e-6f, .y = run.normed.data(), .token_stride_y = c.dim}));
  GPU_OK(Backend().set_tune(kWays[0]));
  ASSERT_TRUE(Backend().moe_few_fuses(run.Exec(), run.Params(false)));
  const std::vector<float> first = run.Call(false);
  ExpectReference(&run, first);
  const std::vector<uint16_t> h = run.h.Read();
  for (const char* way : kWays) {
    SCOPED_TRACE(way);
    GPU_OK(Backend().set_tune(way));
    for (const bool norm : {false, true, false}) {
      if (norm && c.dim < 1024) continue;  // shorter rows are normed by a warp
      ASSERT_TRUE(Backend().moe_few_fuses(run.Exec(), run.Params(norm)));
      EXPECT_EQ(FirstBitDifference(run.Call(norm), first), "") << (norm ? "norm" : "");
      EXPECT_EQ(run.h.Read(), h);
    }
    GpuGraph graph([&] {
      for (int i = 0; i < 3; ++i) GPU_OK(Backend().moe_few(run.Exec(), run.Params(false)));
    });
    run.residual.Write(run.residual_before);
    graph.Launch();
    const std::vector<float> thrice = run.residual.Read();
    run.residual.Write(run.residual_before);
    for (int i = 0; i < 3; ++i) GPU_OK(Backend().moe_few(run.Exec(), run.Params(false)));
    EXPECT_EQ(FirstBitDifference(run.residual.Read(), thrice), "") << "graph";
  }
  EXPECT_TRUE(run.Intact());  // the counters are zero again
}

void CheckAll(const Case& c) {
  const Weights weights(c);
  for (int64_t tokens = 1; tokens <= 4; ++tokens) {
    for (const Spread spread : {Spread::kApart, Spread::kTogether, Spread::kSomeLeftOut, Spread::kNone}) {
      if (tokens == 1 && spread == Spread::kSomeLeftOut) continue;
      Check(weights, tokens, spread);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  EXPECT_TRUE(weights.Intact());
}

TEST_F(GpuMoeFew, SmallShapes) {
  CheckAll({"F16", DType::kF16, 1024, 64, 128, 5, 2});
  CheckAll({"F16, no shared expert", DType::kF16, 2048, 192, 0, 9, 8});
  CheckAll({"F16, rows shorter than a stage", DType::kF16, 64, 64, 64, 3, 1});
  CheckAll({"FP8", DType::kFP8E4M3, 1024, 128, 128, 5, 2});
  CheckAll({"FP8, no shared expert", DType::kFP8E4M3, 2048, 256, 0, 9, 8});
  CheckAll({"FP8, a scale a row", DType::kFP8E4M3, 1152, 384, 128, 6, 3, true});
  CheckAll({"FP8, one expert", DType::kFP8E4M3, 128, 128, 256, 1, 1});
}

TEST_F(GpuMoeFew, DeepSeekV2Lite) { CheckAll({"V2-Lite", DType::kF16, 2048, 1408, 2816, 64, 6}); }

TEST_F(GpuMoeFew, DeepSeekV3) {
  const Case c = {"V3", DType::kFP8E4M3, 7168, 2048, 2048, 24, 8};
  const Weights weights(c);
  for (int64_t tokens = 1; tokens <= 4; ++tokens) Check(weights, tokens, Spread::kApart);
  Check(weights, 3, Spread::kTogether);
  EXPECT_TRUE(weights.Intact());
}

// More experts than the folding warp reads at a time.
TEST_F(GpuMoeFew, ManyExperts) { CheckAll({"384 experts", DType::kFP8E4M3, 1024, 128, 128, 384, 8}); }

TEST_F(GpuMoeFew, ATokensBitsAreItsOwn) {
  for (const Case& c : {Case{"F16", DType::kF16, 2048, 192, 128, 9, 4}, Case{"FP8", DType::kFP8E4M3, 1152, 256, 128, 9, 4}}) {
    const Weights weights(c);
    TestRng rng(207);
    const std::vector<float> residual = rng.NormalVector(4 * c.dim);
    FewCall all(weights, 4, RouteTo(c, 4, Spread::kApart), residual);
    const std::vector<float> together = all.Call(true);
    for (int64_t t = 0; t < 4; ++t) {
      const auto own = [&](const std::vector<float>& rows) { return std::vector<float>(rows.begin() + t * c.dim, rows.begin() + (t + 1) * c.dim); };
      FewCall alone(weights, 1, RouteTo(c, 1, Spread::kApart, t), own(residual));
      EXPECT_EQ(FirstBitDifference(alone.Call(true), own(together)), "") << c.name << ", token " << t;
    }
  }
}

// A router in front of a call of one token, and what it leaves.
struct Router {
  GpuWeight weight;
  GpuArray<float> logits, weights;
  GpuArray<int32_t> ids, pairs, counts, slot;

  Router(const Case& c, const TestWeight& rows, int32_t slot)
      : weight(rows), logits(c.experts), weights(c.top_k), ids(c.top_k), pairs(c.top_k), counts(std::vector<int32_t>(c.experts, 5)),
        slot(std::vector<int32_t>{slot}) {}
  CudaMoeGateParams Params(const CudaMoeFewParams& few, const FewCall& call, bool normalize) const {
    const int32_t experts = call.c.experts, top_k = call.c.top_k;
    return {.x = few.x, .x_stride = few.x_stride, .norm = few.norm, .router = weight.view(), .logits = logits.data(),
            .route = {.logits = logits.data(), .num_tokens = 1, .num_experts = experts, .top_k = top_k, .normalize = normalize,
                      .scaling = normalize ? 2.5f : 1.0f, .expert_ids = ids.data(), .weights = weights.data()},
            .sort = {.expert_ids = ids.data(), .weights = weights.data(), .num_tokens = 1, .top_k = top_k, .num_experts = experts,
                     .expert_begin = call.begin.data(), .token_rows = call.rows.data(), .pair_weights = call.pair_weights.data(),
                     .expert_counts = counts.data(), .token_pairs = pairs.data()}};
  }
};

enum class Logits { kApart, kTies, kNan };
void CheckRouter(const Weights& weights, Logits logits, bool norm, int32_t slot) {
  const Case& c = weights.c;
  if (!Chosen((c.top_k * c.gates + c.shared_gates) * c.dim * 3)) return;
  SCOPED_TRACE(fmt::format("{}: logits {}{}, slot {}", c.name, static_cast<int>(logits), norm ? ", norm" : "", slot));
  TestWeight rows(DType::kF32, c.experts, c.dim, 211);
  auto* router = reinterpret_cast<float*>(rows.bytes.data());
  for (int32_t e = 1; logits == Logits::kTies && e < c.experts; e += 2) std::copy_n(router + (e - 1) * c.dim, c.dim, router + e * c.dim);
  if (logits == Logits::kNan) router[2 * c.dim] = NAN;
  const std::vector<float> residual = TestRng(213).NormalVector(c.dim), normed = TestRng(214).NormalVector(c.dim);
  FewCall apart(weights, 1, RouteTo(c, 1, Spread::kNone), residual), together(weights, 1, RouteTo(c, 1, Spread::kNone), residual);
  const Router before(c, rows, slot), within(c, rows, slot);
  for (FewCall* call : {&apart, &together}) call->normed.Write(normed), call->h.Poison(), call->shared_h.Poison();
  const auto run_apart = [&] {
    const CudaMoeFewParams few = apart.Params(norm);
    GPU_OK(Backend().moe_gate(apart.Exec(), before.Params(few, apart, norm), before.slot.data()));
    GPU_OK(Backend().moe_few(apart.Exec(), few));
  };
  CudaMoeFewParams few = together.Params(norm);
  const CudaMoeGateParams gate = within.Params(few, together, norm);
  few.gate = &gate, few.row_slots = within.slot.data();
  ASSERT_TRUE(Backend().moe_few_fuses(together.Exec(), few));
  const auto expect_same = [&] {
    EXPECT_EQ(FirstBitDifference(together.residual.Read(), apart.residual.Read()), "");
    EXPECT_EQ(FirstBitDifference(within.logits.Read(), before.logits.Read()), "") << "logits";
    EXPECT_EQ(FirstBitDifference(within.weights.Read(), before.weights.Read()), "") << "weights";
    EXPECT_EQ(FirstBitDifference(together.pair_weights.Read(), apart.pair_weights.Read()), "") << "weights of pairs";
    EXPECT_TRUE(within.ids.Read() == before.ids.Read() && within.pairs.Read() == before.pairs.Read() && within.counts.Read() == before.counts.Read());
    EXPECT_TRUE(together.begin.Read() == apart.begin.Read() && together.rows.Read() == apart.rows.Read());
    EXPECT_EQ(together.h.Read(), apart.h.Read());
  };
  run_apart();
  GPU_OK(Backend().moe_few(together.Exec(), few));
  expect_same();
  GpuGraph graph([&] {  // each launch by the logits of its own
    for (int i = 0; i < 3; ++i) GPU_OK(Backend().moe_few(together.Exec(), few));
  });
  for (int replay = 0; replay < 2; ++replay) graph.Launch();
  for (int i = 0; i < 6; ++i) run_apart();
  expect_same();
  EXPECT_TRUE(together.Intact());  // counters and words are zero again
}

TEST_F(GpuMoeFew, TheRouterToo) {
  for (const Case& c : {Case{"V2-Lite", DType::kF16, 2048, 1408, 2816, 64, 6}, Case{"no shared expert", DType::kF16, 1024, 192, 0, 128, 8},
                        Case{"FP8", DType::kFP8E4M3, 1152, 128, 128, 40, 3}}) {
    const Weights weights(c);
    for (const bool norm : {true, false}) {
      for (const Logits logits : {Logits::kApart, Logits::kTies, Logits::kNan}) CheckRouter(weights, logits, norm, 3);
    }
    CheckRouter(weights, Logits::kApart, true, -1);
  }
}

TEST_F(GpuMoeFew, RefusesWhatItDoesNotCover) {
  const Case c = {"FP8", DType::kFP8E4M3, 1024, 128, 128, 5, 2};
  const Weights weights(c);
  FewCall run(weights, 4, RouteTo(c, 4, Spread::kApart), TestRng(208).NormalVector(4 * c.dim));
  const auto refused = [&](const CudaExec& exec, const CudaMoeFewParams& params) {
    return !Backend().moe_few_fuses(exec, params) && FromCuda(Backend().moe_few(exec, params)).code() == StatusCode::kInvalidArgument;
  };
  const CudaMoeFewParams good = run.Params(true);
  EXPECT_TRUE(Backend().moe_few_fuses(run.Exec(), good));
  for (const int mode : {1, 2, 3, 4}) EXPECT_TRUE(refused(run.scratch.Exec(kMatmulModes[mode]), good)) << kMatmulModes[mode].name;
  const auto with = [&](const auto& change) {
    CudaMoeFewParams params = good;
    change(&params);
    return refused(run.Exec(), params);
  };
  EXPECT_TRUE(with([](CudaMoeFewParams* p) { p->num_tokens = 5; }));
  EXPECT_TRUE(with([](CudaMoeFewParams* p) { p->num_tokens = 0; }));
  EXPECT_TRUE(with([](CudaMoeFewParams* p) { p->top_k = 9; }));
  EXPECT_TRUE(with([](CudaMoeFewParams* p) { p->up.dtype = DType::kBF16; }));
  EXPECT_TRUE(with([](CudaMoeFewParams* p) { p->shared_up.dtype = DType::kF16; }));
  EXPECT_TRUE(with([](CudaMoeFewParams* p) { p->up.k = 1000; }));
  EXPECT_TRUE(with([](CudaMoeFewParams* p) { p->down.n = 1152; }));
  EXPECT_TRUE(with([](CudaMoeFewParams* p) { p->x += 1; }));
  GPU_OK(Backend().set_tune("experts=apart"));
  EXPECT_TRUE(refused(run.Exec(), good));
}

}  // namespace
}  // namespace cachalot
