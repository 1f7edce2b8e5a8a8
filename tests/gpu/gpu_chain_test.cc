// Matmuls of one row that follow each other: each alone against sums in double precision of the same values,
// and all of them in one launch the same bits as one by one, at every run and in a graph.
#include <cmath>

#include "gpu_matmul_testing.h"
#include "kernels/matmul/chain_cuda.h"

namespace cachalot {
namespace {

class GpuChain : public GpuTest {
 protected:
  void TearDown() override {
    if (Gpu::Get().backend != nullptr) GPU_EXPECT_OK(Gpu::Get().backend->set_tune(""));
  }
};

constexpr DType kTypes[] = {DType::kQ4_K};
const CudaBackend& Backend() {
  return *Gpu::Get().backend;
}

std::vector<double> Products(const std::vector<float>& w, const std::vector<double>& x) {
  const auto k = static_cast<int64_t>(x.size()), n = static_cast<int64_t>(w.size()) / k;
  std::vector<double> y(static_cast<size_t>(n));
  AllThreads()->ParallelFor((n + 63) / 64, [&](int64_t part, int) {
    for (int64_t row = part * 64; row < std::min(n, part * 64 + 64); ++row) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i)
        sum += double{w[static_cast<size_t>(row * k + i)]} * x[static_cast<size_t>(i)];
      y[static_cast<size_t>(row)] = sum;
    }
  });
  return y;
}

CudaMatmulChain Chain(std::initializer_list<CudaMatmulParams> ops) {
  CudaMatmulChain chain;
  for (const CudaMatmulParams& op : ops) chain.ops[chain.count++] = op;
  return chain;
}

struct How {
  bool norm = false, glu = false, accumulate = false, bias = false;
};

void CheckAlone(const TestWeight& made, const GpuWeight& weight, const std::vector<float>& decoded,
                const How& how) {
  const int64_t n = made.n, k = made.k, width = how.glu ? n / 2 : n;
  if (!Chosen(n * k)) return;
  SCOPED_TRACE(fmt::format("{} n {} k {}{}{}{}{}", DTypeName(made.dtype), n, k, how.norm ? " norm" : "",
                           how.glu ? " glu" : "", how.accumulate ? " +=" : "", how.bias ? " bias" : ""));
  TestRng rng(static_cast<uint64_t>(n + k));
  const std::vector<float> x = BF16Vector(&rng, k), norm = rng.NormalVector(k), bias = rng.NormalVector(n),
                           before = rng.NormalVector(width);
  const GpuArray<float> gpu_x(x), gpu_norm(norm), gpu_bias(bias);
  GpuArray<float> y(before);
  const MatmulScratch scratch(256);
  const CudaExec exec = scratch.Exec(kMatmulModes[0]);
  const CudaMatmulChain chain = Chain(
      {{.x = gpu_x.data(),
        .x_stride = k,
        .m = 1,
        .weight = weight.view(),
        .bias = how.bias ? gpu_bias.data() : nullptr,
        .y = y.data(),
        .y_stride = width,
        .accumulate = how.accumulate,
        .fusion = {.norm_weight = how.norm ? gpu_norm.data() : nullptr, .norm_eps = 1e-5f, .glu = how.glu}}});
  ASSERT_TRUE(Backend().matmul_chains(exec, chain));
  GPU_OK(Backend().matmul_chain(exec, chain));
  std::vector<double> read(x.begin(), x.end());
  if (how.norm) {
    double squares = 0;
    for (const double v : read) squares += v * v;
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(k) + 1e-5);
    for (int64_t i = 0; i < k; ++i) {
      double& v = read[static_cast<size_t>(i)];
      v *= inverse * norm[static_cast<size_t>(i)];
    }
  }
  const std::vector<double> products = Products(decoded, read);
  std::vector<float> want(static_cast<size_t>(width));
  for (size_t i = 0; i < want.size(); ++i) {
    double sum = products[i];
    if (how.glu) sum = sum / (1 + std::exp(-sum)) * products[want.size() + i];
    want[i] = static_cast<float>(sum + (how.bias ? bias[i] : 0) + (how.accumulate ? before[i] : 0));
  }
  constexpr Tolerance kNormed = {1e-6, 4e-5, 4e-4, 1 - 1e-8}, kGlu = {1e-6, 4e-4, 4e-4, 1 - 1e-7};
  const Comparison compared = Compare(y.Read(), want, how.glu ? kGlu : how.norm ? kNormed : kExactXTolerance);
  EXPECT_TRUE(compared.ok) << compared.message;
  EXPECT_TRUE(y.Intact() && gpu_x.Intact() && scratch.Intact());
}

TEST_F(GpuChain, OneAlone) {
  constexpr How kHows[] = {{},
                           {.norm = true},
                           {.glu = true},
                           {.accumulate = true},
                           {.bias = true},
                           {.norm = true, .glu = true},
                           {.accumulate = true, .bias = true}};
  // Fewer rows than blocks, tiles of one row, one stage of a row and many, a last stage that few warps have.
  const std::pair<int64_t, int64_t> shapes[] = {{2, 256},    {34, 2048},   {1410, 1024}, {4224, 768},
                                                {600, 4096}, {2112, 4352}, {4096, 7168}, {96, 8192}};
  for (const DType dtype : kTypes) {
    for (const auto& [n, k] : shapes) {
      const TestWeight made = BigWeight(dtype, n, k, 301);
      const GpuWeight weight(made);
      const std::vector<float> decoded = made.Decoded();
      for (const How& how : kHows) CheckAlone(made, weight, decoded, how);
      EXPECT_TRUE(weight.Intact());
      if (HasFatalFailure()) return;
    }
    const TestWeight made = BigWeight(dtype, 300, 14336, 302);
    const GpuWeight weight(made);
    const std::vector<float> decoded = made.Decoded();
    for (const How& how : {How{}, How{.norm = true}, How{.accumulate = true}})
      CheckAlone(made, weight, decoded, how);
  }
}

// A layer from attention's output to the next one's queries.
struct Layer {
  int64_t dim, width, gates, next;
  GpuWeight o, gate_up, down, qkv;
  std::vector<float> attended, residual;
  GpuArray<float> x, stream, h, out, first_norm, second_norm, bias;

  Layer(DType dtype, int64_t dim, int64_t width, int64_t gates, int64_t next)
      : dim(dim),
        width(width),
        gates(gates),
        next(next),
        o(BigWeight(dtype, dim, width, 311)),
        gate_up(BigWeight(dtype, 2 * gates, dim, 312)),
        down(BigWeight(dtype, dim, gates, 313)),
        qkv(BigWeight(dtype, next, dim, 314)),
        attended(TestRng(315).NormalVector(width)),
        residual(TestRng(316).NormalVector(dim)),
        x(attended),
        stream(residual),
        h(gates),
        out(next),
        first_norm(TestRng(317).NormalVector(dim)),
        second_norm(TestRng(318).NormalVector(dim)),
        bias(TestRng(319).NormalVector(next)) {}

  CudaMatmulChain Ops() const {
    return Chain({{.x = x.data(),
                   .x_stride = width,
                   .m = 1,
                   .weight = o.view(),
                   .y = stream.data(),
                   .y_stride = dim,
                   .accumulate = true},
                  {.x = stream.data(),
                   .x_stride = dim,
                   .m = 1,
                   .weight = gate_up.view(),
                   .y = h.data(),
                   .y_stride = gates,
                   .fusion = {.norm_weight = first_norm.data(), .norm_eps = 1e-5f, .glu = true}},
                  {.x = h.data(),
                   .x_stride = gates,
                   .m = 1,
                   .weight = down.view(),
                   .y = stream.data(),
                   .y_stride = dim,
                   .accumulate = true},
                  {.x = stream.data(),
                   .x_stride = dim,
                   .m = 1,
                   .weight = qkv.view(),
                   .bias = bias.data(),
                   .y = out.data(),
                   .y_stride = next,
                   .fusion = {.norm_weight = second_norm.data(), .norm_eps = 1e-5f}}});
  }
  void Reset() {
    stream.Write(residual);
    h.Poison();
    out.Poison();
  }
  std::vector<float> All() const {
    std::vector<float> all = stream.Read();
    for (const auto& part : {h.Read(), out.Read()}) all.insert(all.end(), part.begin(), part.end());
    return all;
  }
  bool Intact() const { return x.Intact() && stream.Intact() && h.Intact() && out.Intact(); }
};

TEST_F(GpuChain, ALayerInOneLaunch) {
  struct Shape {
    int64_t dim, width, gates, next;
  };
  for (const DType dtype : kTypes) {
    for (const Shape& s :
         {Shape{512, 1024, 768, 1280}, Shape{256, 256, 256, 256}, Shape{4096, 4096, 14336, 6144}}) {
      if (!Chosen(s.dim * (s.width + 3 * s.gates + s.next))) continue;
      SCOPED_TRACE(fmt::format("{} {} {} {} {}", DTypeName(dtype), s.dim, s.width, s.gates, s.next));
      Layer layer(dtype, s.dim, s.width, s.gates, s.next);
      const MatmulScratch scratch(256);
      const CudaExec exec = scratch.Exec(kMatmulModes[0]);
      const CudaMatmulChain all = layer.Ops();
      layer.Reset();
      for (int i = 0; i < all.count; ++i) GPU_OK(Backend().matmul_chain(exec, Chain({all.ops[i]})));
      const std::vector<float> want = layer.All();
      for (int run = 0; run < 20; ++run) {
        layer.Reset();
        ASSERT_TRUE(Backend().matmul_chains(exec, all));
        GPU_OK(Backend().matmul_chain(exec, all));
        ASSERT_EQ(FirstBitDifference(layer.All(), want), "") << "run " << run;
      }
      layer.Reset();
      for (int i = 0; i < 3; ++i) GPU_OK(Backend().matmul_chain(exec, all));
      const std::vector<float> thrice = layer.All();
      GpuGraph graph([&] {
        for (int i = 0; i < 3; ++i) GPU_OK(Backend().matmul_chain(exec, all));
      });
      layer.Reset();
      graph.Launch();
      EXPECT_EQ(FirstBitDifference(layer.All(), thrice), "") << "graph";
      // Graphs of an odd and an even number of launches, in turn and often: what the blocks hand each other
      // is never the launch before's.
      GpuGraph two([&] {
        for (int i = 0; i < 2; ++i) GPU_OK(Backend().matmul_chain(exec, all));
      });
      std::vector<float> often;
      for (int round = 0; round < 2; ++round) {
        layer.Reset();
        for (int run = 0; run < 30; ++run) (run % 3 == 0 ? two : graph).Launch();
        if (round == 0) {
          often = layer.All();
        } else {
          EXPECT_EQ(FirstBitDifference(layer.All(), often), "") << "graphs in turn";
        }
      }
      EXPECT_TRUE(layer.Intact() && scratch.Intact());
    }
  }
}

// Chains of one op to six, and layers of different sizes in turn, whose words of the exchange lie where the
// others' did.
TEST_F(GpuChain, OfAnyLengthInTurn) {
  for (const DType dtype : kTypes) {
    Layer small(dtype, 256, 512, 1024, 768), large(dtype, 1536, 1024, 2816, 512);
    const MatmulScratch scratch(256);
    const CudaExec exec = scratch.Exec(kMatmulModes[0]);
    const auto ops_of = [](const Layer& layer) {
      CudaMatmulChain ops = layer.Ops();
      ops.ops[ops.count++] = ops.ops[1];
      ops.ops[ops.count++] = ops.ops[2];
      return ops;
    };
    const CudaMatmulChain chains[] = {ops_of(small), ops_of(large)};
    Layer* layers[] = {&small, &large};
    std::vector<float> want[2];
    for (int which = 0; which < 2; ++which) {
      layers[which]->Reset();
      for (int i = 0; i < chains[which].count; ++i)
        GPU_OK(Backend().matmul_chain(exec, Chain({chains[which].ops[i]})));
      want[which] = layers[which]->All();
    }
    for (int first = 1; first <= kMostChained;
         ++first) {  // ops of the first launch; the next one has the others
      for (int run = 0; run < 4; ++run) {
        const int which = (first + run) % 2;
        layers[which]->Reset();
        for (int from = 0; from < kMostChained;) {
          CudaMatmulChain part;
          while (from < kMostChained && part.count < first) {
            part.ops[part.count++] = chains[which].ops[from];
            if (!Backend().matmul_chains(exec, part)) {  // not behind those in front
              --part.count;
              break;
            }
            ++from;
          }
          ASSERT_GT(part.count, 0);
          GPU_OK(Backend().matmul_chain(exec, part));
        }
        ASSERT_EQ(FirstBitDifference(layers[which]->All(), want[which]), "")
            << first << " of layer " << which;
      }
    }
    EXPECT_TRUE(small.Intact() && large.Intact() && scratch.Intact());
  }
}

// A zero is a value like any other, though the exchange is zero where nothing has been written.
TEST_F(GpuChain, ZerosAreHandedOn) {
  for (const DType dtype : kTypes) {
    Layer layer(dtype, 512, 256, 768, 256);
    const MatmulScratch scratch(256);
    layer.x.Write(std::vector<float>(256));
    layer.residual.assign(512, 0.0f);
    layer.Reset();
    for (int run = 0; run < 3; ++run)
      GPU_OK(Backend().matmul_chain(scratch.Exec(kMatmulModes[0]), layer.Ops()));
    for (const float v : layer.stream.Read()) ASSERT_EQ(v, 0);
    for (const float v : layer.h.Read()) ASSERT_EQ(v, 0);
    EXPECT_EQ(FirstBitDifference(layer.out.Read(), layer.bias.Read()), "");
  }
}

TEST_F(GpuChain, NoNumberIsKept) {
  for (const DType dtype : kTypes) {
    const GpuWeight weight(BigWeight(dtype, 300, 2048, 321));
    std::vector<float> x = TestRng(322).NormalVector(2048);
    x[1234] = NAN;
    const GpuArray<float> gpu_x(x);
    GpuArray<float> y(300);
    const MatmulScratch scratch(256);
    GPU_OK(Backend().matmul_chain(scratch.Exec(kMatmulModes[0]), Chain({{.x = gpu_x.data(),
                                                                         .x_stride = 2048,
                                                                         .m = 1,
                                                                         .weight = weight.view(),
                                                                         .y = y.data(),
                                                                         .y_stride = 300}})));
    for (const float v : y.Read()) ASSERT_TRUE(std::isnan(v)) << DTypeName(dtype);
  }
}

TEST_F(GpuChain, RefusesWhatItDoesNotCover) {
  const GpuWeight weight(BigWeight(DType::kQ4_K, 64, 1024, 323)),
      other(BigWeight(DType::kQ5_K, 64, 1024, 324));
  const GpuArray<float> x(2 * 1024);
  GpuArray<float> y(128);
  const MatmulScratch scratch(256);
  const CudaMatmulParams good = {
      .x = x.data(), .x_stride = 1024, .m = 1, .weight = weight.view(), .y = y.data(), .y_stride = 64};
  const auto refused = [&](const CudaExec& exec, const CudaMatmulChain& chain) {
    return !Backend().matmul_chains(exec, chain) &&
           FromCuda(Backend().matmul_chain(exec, chain)).code() == StatusCode::kInvalidArgument;
  };
  const auto with = [&](const auto& change) {
    CudaMatmulParams params = good;
    change(&params);
    return refused(scratch.Exec(kMatmulModes[0]), Chain({good, params}));
  };
  EXPECT_TRUE(Backend().matmul_chains(scratch.Exec(kMatmulModes[0]), Chain({good, good})));
  EXPECT_TRUE(Backend().matmul_chains(scratch.Exec(kMatmulModes[2]), Chain({good}))) << "it needs no counters";
  for (const int mode : {1, 3, 4})
    EXPECT_TRUE(refused(scratch.Exec(kMatmulModes[mode]), Chain({good}))) << kMatmulModes[mode].name;
  EXPECT_TRUE(refused(scratch.Exec(kMatmulModes[0]), {}));
  EXPECT_TRUE(with([](CudaMatmulParams* p) { p->m = 2; }));
  EXPECT_TRUE(with([&](CudaMatmulParams* p) { p->weight = other.view(); }));
  EXPECT_TRUE(with([](CudaMatmulParams* p) { p->x += 1; }));
  EXPECT_TRUE(with([](CudaMatmulParams* p) { p->fusion.glu = true, p->accumulate = true; }));
  // What one op leaves and another reads or writes: all of it, in the same rows.
  const GpuWeight square(BigWeight(DType::kQ4_K, 256, 256, 325)),
      half(BigWeight(DType::kQ4_K, 128, 256, 326));
  GpuArray<float> a(512), b(512);
  const auto op = [](const float* from, const GpuWeight& w, float* to, bool accumulate) {
    return CudaMatmulParams{.x = from,
                            .x_stride = 256,
                            .m = 1,
                            .weight = w.view(),
                            .y = to,
                            .y_stride = w.view().n,
                            .accumulate = accumulate};
  };
  const auto together = [&](const CudaMatmulParams& first, const CudaMatmulParams& second) {
    return Backend().matmul_chains(scratch.Exec(kMatmulModes[0]), Chain({first, second}));
  };
  EXPECT_TRUE(together(op(a.data(), square, b.data(), false), op(b.data(), square, b.data() + 256, false)));
  EXPECT_TRUE(together(op(a.data(), square, b.data(), false), op(a.data() + 256, square, b.data(), true)));
  EXPECT_FALSE(
      together(op(a.data(), square, b.data(), false), op(b.data() + 128, square, a.data() + 256, false)));
  EXPECT_FALSE(together(op(a.data(), half, b.data(), false), op(b.data(), square, a.data() + 256, false)));
  EXPECT_FALSE(together(op(a.data(), square, b.data(), false), op(a.data() + 256, half, b.data(), true)));
  EXPECT_TRUE(together(op(a.data(), square, b.data(), false), op(b.data(), square, a.data(), false)));
  EXPECT_FALSE(together(op(a.data(), square, b.data(), false), op(a.data() + 256, square, a.data(), false)));
  EXPECT_FALSE(
      together(op(a.data(), square, b.data(), false), op(b.data() + 256, square, b.data() + 256, false)));
  GPU_OK(Backend().set_tune("chain=none"));
  EXPECT_TRUE(refused(scratch.Exec(kMatmulModes[0]), Chain({good})));
}

}  // namespace
}  // namespace cachalot
