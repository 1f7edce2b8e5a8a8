// F16 copies that norms and SwiGLU leave for the matmuls behind them: the same bits as without, in a graph too, and never
// those of values that are no longer there.
#include <functional>

#include "gpu_matmul_testing.h"
#include "kernels/common/cuda_step.h"
#include "kernels/head_matmul/head_matmul.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/swiglu/swiglu.h"

namespace cachalot {
namespace {

constexpr int64_t kHidden = 512, kInner = 768, kMaxRows = 200;
constexpr int kSources = CudaHalfCopies::kNumSources;

PackedMatrix ViewOf(const GpuWeight& weight) {
  PackedMatrix matrix;
  matrix.layout = PackLayout::kCuda;
  matrix.dtype = weight.view().dtype;
  matrix.n = weight.view().n;
  matrix.k = weight.view().k;
  matrix.data = weight.view().data;
  matrix.block_scales = weight.view().block_scales;
  matrix.block_scale_rows = weight.view().block_scale_rows;
  return matrix;
}

// Rows of x, what a layer makes of them, and the weights that it takes.
struct Rows {
  Rows(DType dtype, int64_t m)
      : m(m), gate_up_weight(TestWeight(dtype, 2 * kInner, kHidden, 1)), down_weight(TestWeight(dtype, kHidden, kInner, 2)),
        narrow_weight(TestWeight(dtype, 64, kHidden, 3)), gate_up(ViewOf(gate_up_weight)), down(ViewOf(down_weight)),
        narrow(ViewOf(narrow_weight)), norm_weight(NormWeight()), x(m * kHidden), normed(m * kHidden), other(m * kHidden),
        products(m * 2 * kInner), scratch(ScratchBytes()) {
    for (int i = 0; i < kSources; ++i) copies.push_back(std::make_unique<GpuBytes>(kMaxRows * kInner * 2));
    Reset();
  }
  void Reset() {
    TestRng rng(static_cast<uint64_t>(m));
    x.Write(rng.NormalVector(m * kHidden));
    other.Write(rng.NormalVector(m * kHidden));
    normed.Poison();
    products.Poison();
    for (const auto& copy : copies) copy->Poison();
  }
  // Such that some values are beyond F16.
  static std::vector<float> NormWeight() {
    TestRng rng(4);
    std::vector<float> weight = rng.NormalVector(kHidden);
    weight[3] = 1e6f;
    return weight;
  }
  int64_t ScratchBytes() const {
    int64_t bytes = 0;
    for (const GpuWeight* weight : {&gate_up_weight, &down_weight, &narrow_weight}) {
      bytes = std::max(bytes, Gpu::Get().backend->matmul_workspace_bytes({.m = m, .weight = weight->view()}, Gpu::Get().info.num_sms));
    }
    return bytes;
  }
  bool Intact() const {
    return x.Intact() && normed.Intact() && other.Intact() && products.Intact() && scratch.Intact() &&
           std::all_of(copies.begin(), copies.end(), [](const auto& copy) { return copy->Intact(); });
  }

  int64_t m;
  GpuWeight gate_up_weight, down_weight, narrow_weight;
  PackedMatrix gate_up, down, narrow;
  GpuArray<float> norm_weight, x, normed, other, products;
  MatmulScratch scratch;
  std::vector<std::unique_ptr<GpuBytes>> copies;
};

// The ops on those rows, with copies or without.
class Ops {
 public:
  Ops(const Rows* rows, bool copies, bool deterministic = false) : r_(*rows) {
    step_.backend = Gpu::Get().backend;
    step_.exec = r_.scratch.Exec({"", CudaMath::kFast, deterministic, true});
    for (int i = 0; copies && i < kSources; ++i) {
      step_.halves.Provide(static_cast<CudaHalfSource>(i), {r_.copies[static_cast<size_t>(i)]->data(), kMaxRows * kInner * 2, 9});
    }
    exec_ = {.device = DeviceType::kCuda, .cuda = &step_};
  }
  void Norm(const GpuArray<float>& from, const GpuArray<float>& to, int64_t heads = 1) {
    RmsNorm(exec_, {.x = from.data(), .token_stride_x = kHidden, .head_stride_x = kHidden / heads, .num_tokens = r_.m,
                    .num_heads = heads, .dim = kHidden / heads, .weight = r_.norm_weight.data(), .y = to.data(),
                    .token_stride_y = kHidden, .head_stride_y = kHidden / heads});
  }
  void GateUp(const GpuArray<float>& from) {
    Matmul(exec_, {.x = from.data(), .x_stride = kHidden, .m = r_.m, .weight = &r_.gate_up, .y = r_.products.data(), .y_stride = 2 * kInner});
  }
  // The first columns of `to`.
  void Narrow(const GpuArray<float>& from, const GpuArray<float>& to) {
    Matmul(exec_, {.x = from.data(), .x_stride = kHidden, .m = r_.m, .weight = &r_.narrow, .y = to.data(), .y_stride = kHidden});
  }
  void Activate() {
    SwiGlu(exec_, {.gate = r_.products.data(), .up = r_.products.data() + kInner, .x_stride = 2 * kInner, .m = r_.m, .dim = kInner,
                   .y = r_.products.data(), .y_stride = 2 * kInner});
  }
  void ActivateInto(const GpuArray<float>& to) {
    SwiGlu(exec_, {.gate = r_.products.data(), .up = r_.products.data() + kInner, .x_stride = 2 * kInner, .m = r_.m, .dim = kHidden,
                   .y = to.data(), .y_stride = kHidden});
  }
  void Down() {
    Matmul(exec_, {.x = r_.products.data(), .x_stride = 2 * kInner, .m = r_.m, .weight = &r_.down, .y = r_.x.data(), .y_stride = kHidden,
                   .accumulate = true});
  }
  void Copy(const GpuArray<float>& from, const GpuArray<float>& to) {
    CopyHeads(exec_, {.x = from.data(), .x_stride = kHidden, .x_head_stride = kHidden, .m = r_.m, .num_heads = 1,
                      .dim = kHidden, .y = to.data(), .y_stride = kHidden, .y_head_stride = kHidden});
  }
  void Layer() {
    Norm(r_.x, r_.normed);
    GateUp(r_.normed);
    Activate();
    Down();
  }
  bool Found(const GpuArray<float>& x) {
    return step_.halves.Find(x.data(), kHidden, r_.m, kHidden, 9).data != nullptr;
  }
  const Status& status() const { return step_.status; }

 private:
  const Rows& r_;
  CudaStep step_;
  ExecContext exec_;
};

class GpuHalfCopies : public GpuTest {};

TEST_F(GpuHalfCopies, LayersHaveTheSameBits) {
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kFP8E4M3, DType::kQ8_0, DType::kQ4_0}) {
    for (int64_t m : {1, 8, 9, 16, 64, 100, 130, 200}) {
      for (bool deterministic : {false, true}) {
        if (!Chosen(6 * 3 * m * kHidden * kInner)) continue;
        SCOPED_TRACE(fmt::format("{} m {}{}", DTypeName(dtype), m, deterministic ? " deterministic" : ""));
        Rows rows(dtype, m);
        std::vector<float> results[2];
        for (bool copies : {false, true}) {
          rows.Reset();
          Ops ops(&rows, copies, deterministic);
          for (int layer = 0; layer < 3; ++layer) ops.Layer();
          ASSERT_TRUE(ops.status().ok()) << ops.status().ToString();
          EXPECT_EQ(ops.Found(rows.normed), copies && m >= 9);
          results[copies] = rows.x.Read();
        }
        EXPECT_EQ(FirstBitDifference(results[1], results[0]), "");
        EXPECT_TRUE(rows.Intact());
      }
    }
  }
}

TEST_F(GpuHalfCopies, AGraphIsAsStepByStep) {
  for (DType dtype : {DType::kF16, DType::kFP8E4M3}) {
    for (int64_t m : {16, 64, 128, 200}) {
      if (!Chosen(120 * 3 * m * kHidden * kInner)) continue;
      Rows rows(dtype, m);
      Ops plain(&rows, false), ops(&rows, true);
      // The state of a replay is the next one's input; normalised, so that it stays in range.
      const auto chain = [&](Ops& with, bool wait) {
        for (int layer = 0; layer < 6; ++layer) {
          with.Layer();
          if (wait) Gpu::Get().Synchronize();
        }
        with.Norm(rows.x, rows.x);
      };
      constexpr int kReplays = 10;
      for (int i = 0; i < kReplays; ++i) chain(plain, true);
      const std::vector<float> want = rows.x.Read();
      rows.Reset();
      GpuGraph graph([&] { chain(ops, false); });
      for (int i = 0; i + 1 < kReplays; ++i) graph.Enqueue();
      graph.Launch();
      EXPECT_EQ(FirstBitDifference(rows.x.Read(), want), "") << DTypeName(dtype) << " m " << m;
      EXPECT_TRUE(ops.status().ok() && plain.status().ok() && rows.Intact());
    }
  }
}

TEST_F(GpuHalfCopies, StaleOnesAreNotUsed) {
  struct Story {
    const char* name;
    std::function<void(Ops&, const Rows&)> between;  // the norm of x into `normed` and the matmul of `normed`
  };
  const Story stories[] = {
      {"nothing", [](Ops&, const Rows&) {}},
      {"copied over", [](Ops& ops, const Rows& r) { ops.Copy(r.other, r.normed); }},
      {"columns multiplied over", [](Ops& ops, const Rows& r) { ops.Narrow(r.other, r.normed); }},
      {"normalised by heads", [](Ops& ops, const Rows& r) { ops.Norm(r.normed, r.normed, 4); }},
      {"normalised again", [](Ops& ops, const Rows& r) { ops.Norm(r.other, r.normed); }},
      {"activated over", [](Ops& ops, const Rows& r) { ops.GateUp(r.other), ops.ActivateInto(r.normed); }},
      {"something else normalised", [](Ops& ops, const Rows& r) { ops.Norm(r.x, r.other); }},
      {"something else multiplied", [](Ops& ops, const Rows& r) { ops.Narrow(r.normed, r.other); }},
  };
  for (const auto& [name, between] : stories) {
    for (int64_t m : {9, 64, 150}) {
      SCOPED_TRACE(fmt::format("{}, m {}", name, m));
      Rows rows(DType::kF16, m);
      std::vector<float> results[2];
      for (bool copies : {false, true}) {
        rows.Reset();
        Ops ops(&rows, copies);
        ops.Norm(rows.x, rows.normed);
        between(ops, rows);
        ops.GateUp(rows.normed);
        ASSERT_TRUE(ops.status().ok()) << ops.status().ToString();
        results[copies] = rows.products.Read();
      }
      EXPECT_EQ(FirstBitDifference(results[1], results[0]), "");
    }
  }
}

// Few rows, that heads' products and SwiGLU leave for FP8 matmuls with long rows.
TEST_F(GpuHalfCopies, FewLongRowsOfFp8) {
  constexpr int64_t kLong = 8192, kDim = 1024, kHeadDim = 128, kHeads = kLong / kHeadDim, kLatent = 64, kOut = 72, kMost = 4;
  const GpuWeight head_weight(TestWeight(DType::kBF16, kLong, kLatent, 1)), gate_up_weight(TestWeight(DType::kFP8E4M3, 2 * kLong, kDim, 2)),
      down_weight(TestWeight(DType::kFP8E4M3, kOut, kLong, 3));
  HeadMatrices heads = {.matrices = {}, .num_heads = kHeads, .n = kHeadDim, .k = kLatent};
  heads.matrices.push_back(ViewOf(head_weight));
  const PackedMatrix gate_up = ViewOf(gate_up_weight), down = ViewOf(down_weight);
  TestRng rng(4);
  const GpuArray<float> latents(rng.NormalVector(kMost * kHeads * kLatent)), x(rng.NormalVector(kMost * kDim));
  GpuArray<float> inner(kMost * kLong), y(kMost * kOut);
  GpuBytes copies[kSources] = {GpuBytes(kMost * kLong * 2), GpuBytes(kMost * kLong * 2), GpuBytes(kMost * kLong * 2), GpuBytes(kMost * kLong * 2)};
  const MatmulScratch scratch(int64_t{64} << 20);
  for (int64_t m = 1; m <= kMost; ++m) {
    for (bool deterministic : {false, true}) {
      for (bool glu : {false, true}) {
        SCOPED_TRACE(fmt::format("m {}{}{}", m, deterministic ? " deterministic" : "", glu ? " SwiGLU" : " heads"));
        std::vector<float> results[2];
        for (bool with_copies : {false, true}) {
          CudaStep step;
          step.backend = Gpu::Get().backend;
          step.exec = scratch.Exec({"", CudaMath::kFast, deterministic, true});
          for (int i = 0; with_copies && i < kSources; ++i) {
            step.halves.Provide(static_cast<CudaHalfSource>(i), {copies[i].data(), kMost * kLong * 2, 2});
          }
          const ExecContext exec = {.device = DeviceType::kCuda, .cuda = &step};
          y.Poison(), inner.Poison();
          for (GpuBytes& copy : copies) copy.Poison();
          const MatmulParams activated = {.x = x.data(), .x_stride = kDim, .m = m, .weight = &gate_up, .y = inner.data(), .y_stride = kLong,
                                          .fusion = {.glu = true}};
          if (glu && !MatmulFuses(exec, activated)) continue;
          if (glu) {
            Matmul(exec, activated);
          } else {
            HeadMatmul(exec, {.x = latents.data(), .x_stride = kHeads * kLatent, .x_head_stride = kLatent, .m = m, .weights = &heads,
                              .y = inner.data(), .y_stride = kLong, .y_head_stride = kHeadDim});
          }
          EXPECT_EQ(step.halves.Find(inner.data(), kLong, m, kLong, 2).data != nullptr, with_copies && m >= 2);
          Matmul(exec, {.x = inner.data(), .x_stride = kLong, .m = m, .weight = &down, .y = y.data(), .y_stride = kOut});
          ASSERT_TRUE(step.status.ok()) << step.status.ToString();
          results[with_copies] = y.Read();
        }
        EXPECT_EQ(FirstBitDifference(results[1], results[0]), "");
        EXPECT_TRUE(scratch.Intact() && y.Intact() && inner.Intact());
      }
    }
  }
}

}  // namespace
}  // namespace cachalot
