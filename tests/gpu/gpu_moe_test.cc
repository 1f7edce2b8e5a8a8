// MoeRoute and MoeSort on the GPU: the same choices as the CPU's, in every mode.
#include <cmath>

#include "gpu_matmul_testing.h"
#include "kernels/moe_route/moe_gate_cuda.h"
#include "kernels/moe_route/moe_route.h"
#include "kernels/rms_norm/rms_norm.h"

namespace cachalot {
namespace {

class GpuMoe : public GpuTest {};

const CudaBackend& Backend() { return *Gpu::Get().backend; }

struct Case {
  const char* name;
  int32_t num_experts, top_k;
  MoeScore score;
  MoeGroupScore group_score;
  int32_t num_groups, top_k_groups;
  bool bias, normalize;
  float scaling;
};

constexpr Case kCases[] = {
    {"Mixtral", 8, 2, MoeScore::kSoftmax, MoeGroupScore::kNone, 1, 1, false, true, 1.0f},
    {"V2-Lite", 64, 6, MoeScore::kSoftmax, MoeGroupScore::kNone, 1, 1, false, false, 1.0f},
    {"V2", 160, 6, MoeScore::kSoftmax, MoeGroupScore::kMax, 8, 3, false, false, 16.0f},
    {"V3", 256, 8, MoeScore::kSigmoid, MoeGroupScore::kTop2Sum, 8, 4, true, true, 2.5f},
    {"384", 384, 8, MoeScore::kSigmoid, MoeGroupScore::kNone, 1, 1, true, true, 2.827f},
    {"one of one", 1, 1, MoeScore::kSoftmax, MoeGroupScore::kNone, 1, 1, false, true, 1.0f},
    {"all of them", 13, 13, MoeScore::kSigmoid, MoeGroupScore::kNone, 1, 1, false, true, 1.0f},
    {"groups of one", 6, 2, MoeScore::kSigmoid, MoeGroupScore::kTop2Sum, 6, 3, true, false, 1.0f},
    {"many groups", 128, 4, MoeScore::kSoftmax, MoeGroupScore::kMax, 64, 5, true, true, 1.0f},
};

MoeRouteParams ParamsOf(const Case& c, int64_t tokens) {
  MoeRouteParams params;
  params.num_tokens = tokens;
  params.num_experts = c.num_experts;
  params.top_k = c.top_k;
  params.score = c.score;
  params.group_score = c.group_score;
  params.num_groups = c.num_groups;
  params.top_k_groups = c.top_k_groups;
  params.normalize = c.normalize;
  params.scaling = c.scaling;
  return params;
}

void RunBoth(const Case& c, int64_t tokens, const std::vector<float>& logits, const std::vector<float>& bias) {
  const int64_t pairs = tokens * c.top_k;
  MoeRouteParams params = ParamsOf(c, tokens);
  std::vector<int32_t> want_ids(pairs);
  std::vector<float> want_weights(pairs);
  params.logits = logits.data();
  params.choice_bias = c.bias ? bias.data() : nullptr;
  params.expert_ids = want_ids.data();
  params.weights = want_weights.data();
  MoeRoute(TestContext(Isa::kRef), params);

  const GpuArray<float> gpu_logits(logits), gpu_bias(bias), weights(pairs);
  const GpuArray<int32_t> ids(pairs);
  params.logits = gpu_logits.data();
  params.choice_bias = c.bias ? gpu_bias.data() : nullptr;
  params.expert_ids = ids.data();
  params.weights = weights.data();
  GPU_OK(Backend().moe_route(Gpu::Get().Exec(), params));
  const std::vector<int32_t> got_ids = ids.Read();
  EXPECT_TRUE(ids.Intact() && weights.Intact());
  for (int64_t i = 0; i < pairs; ++i) {
    ASSERT_EQ(got_ids[i], want_ids[i]) << c.name << " token " << i / c.top_k << " choice " << i % c.top_k;
  }
  const Comparison compared = Compare(weights.Read(), want_weights, ToleranceFor(OpClass::kSoftmax));
  EXPECT_TRUE(compared.ok) << c.name << ": " << compared.message;
}

// Steps of 1/64: two logits are equal or their scores differ by far more than an exp may be rounded, so that the choice is
// the same wherever it is made. Biases of 0 and 1 keep it so.
void Quantize(std::span<float> logits) {
  for (float& logit : logits) logit = std::round(logit * 64) / 64;
}

TEST_F(GpuMoe, RouteAgainstTheReference) {
  for (const Case& c : kCases) {
    for (int64_t tokens : {1, 3, 4, 5, 1000}) {
      TestRng rng(static_cast<uint64_t>(c.num_experts + tokens));
      std::vector<float> logits = rng.NormalVector(tokens * c.num_experts, 2.0f), bias(c.num_experts);
      Quantize(logits);
      for (float& b : bias) b = static_cast<float>(rng.Int(0, 1));
      RunBoth(c, tokens, logits, bias);
    }
  }
}

// Equal scores: the lower index first. Logits from a few values give many ties.
TEST_F(GpuMoe, TiesGoToTheLowerIndex) {
  for (const Case& c : kCases) {
    constexpr int64_t kTokens = 64;
    TestRng rng(7);
    std::vector<float> logits(kTokens * c.num_experts);
    for (float& logit : logits) logit = static_cast<float>(rng.Int(-1, 1));
    std::fill_n(logits.begin(), c.num_experts, 0.0f);
    RunBoth(c, kTokens, logits, std::vector<float>(c.num_experts, 0.0f));
  }
}

TEST_F(GpuMoe, NansAndInfinitiesChooseWhatTheReferenceChooses) {
  for (const Case& c : kCases) {
    if (c.score != MoeScore::kSigmoid) continue;
    constexpr int64_t kTokens = 32;
    TestRng rng(9);
    std::vector<float> logits = rng.NormalVector(kTokens * c.num_experts);
    Quantize(logits);
    for (float& logit : logits) {
      const int64_t pick = rng.Int(0, 9);
      if (pick == 0) logit = -INFINITY;
      if (pick == 1) logit = -0.0f;
      if (pick == 2) logit = 0.0f;
      if (pick == 3) logit = NAN;
    }
    const int64_t pairs = kTokens * c.top_k;
    MoeRouteParams params = ParamsOf(c, kTokens);
    std::vector<int32_t> want(pairs);
    std::vector<float> weights(pairs);
    params.logits = logits.data();
    params.expert_ids = want.data();
    params.weights = weights.data();
    MoeRoute(TestContext(Isa::kRef), params);
    const GpuArray<float> gpu_logits(logits), gpu_weights(pairs);
    const GpuArray<int32_t> ids(pairs);
    params.logits = gpu_logits.data();
    params.expert_ids = ids.data();
    params.weights = gpu_weights.data();
    GPU_OK(Backend().moe_route(Gpu::Get().Exec(), params));
    EXPECT_EQ(ids.Read(), want) << c.name;
  }
}

void CheckSort(int64_t tokens, int32_t top_k, int32_t num_experts, int padded_rows) {
  SCOPED_TRACE(fmt::format("{} tokens, top {} of {}, {} padded", tokens, top_k, num_experts, padded_rows));
  TestRng rng(static_cast<uint64_t>(tokens * 31 + num_experts));
  const int64_t pairs = tokens * top_k, kept = pairs - int64_t{padded_rows} * top_k;
  std::vector<int32_t> ids(pairs), slots(tokens, 0);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.Int(0, num_experts - 1) * rng.Int(0, num_experts - 1) / num_experts);
  const std::vector<float> weights = rng.NormalVector(pairs);
  for (int i = 0; i < padded_rows; ++i) slots[tokens - 1 - i] = -1;
  std::vector<int32_t> want_begin(num_experts + 1), want_rows(pairs, -1), want_pairs(pairs, -1);
  std::vector<float> want_weights(pairs, std::bit_cast<float>(0xffffffffu));
  MoeSort(TestContext(Isa::kRef), {.expert_ids = ids.data(),
                                   .weights = weights.data(),
                                   .num_tokens = tokens - padded_rows,
                                   .top_k = top_k,
                                   .num_experts = num_experts,
                                   .expert_begin = want_begin.data(),
                                   .token_rows = want_rows.data(),
                                   .pair_weights = want_weights.data(),
                                   .token_pairs = want_pairs.data()});
  const GpuArray<int32_t> gpu_ids(ids), gpu_slots(slots), begin(num_experts + 1), rows(pairs), token_pairs(pairs);
  const GpuArray<float> gpu_weights(weights), pair_weights(pairs);
  GPU_OK(Backend().moe_sort(Gpu::Get().Exec(),
                            {.expert_ids = gpu_ids.data(),
                             .weights = gpu_weights.data(),
                             .num_tokens = tokens,
                             .top_k = top_k,
                             .num_experts = num_experts,
                             .expert_begin = begin.data(),
                             .token_rows = rows.data(),
                             .pair_weights = pair_weights.data(),
                             .token_pairs = token_pairs.data()},
                            padded_rows == 0 ? nullptr : gpu_slots.data()));
  EXPECT_EQ(begin.Read(), want_begin);
  EXPECT_EQ(begin.Read().back(), kept);
  EXPECT_EQ(rows.Read(), want_rows);  // what is left over stays poison, which is -1
  EXPECT_EQ(token_pairs.Read(), want_pairs);
  EXPECT_EQ(FirstBitDifference(pair_weights.Read(), want_weights), "");
  EXPECT_TRUE(begin.Intact() && rows.Intact() && pair_weights.Intact() && token_pairs.Intact());
}

TEST_F(GpuMoe, SortIsStable) {
  CheckSort(1, 1, 1, 0);
  CheckSort(1, 8, 256, 0);
  CheckSort(64, 6, 64, 3);
  CheckSort(1000, 8, 256, 0);
  CheckSort(2000, 8, 256, 7);   // counted by one block first
  CheckSort(5000, 2, 8, 100);
  CheckSort(1500, 8, 1500, 0);  // more experts than a block has threads
}

// What a router leaves.
struct Routed {
  Routed(const Case& c, int64_t tokens)
      : logits(tokens * c.num_experts), weights(tokens * c.top_k), pair_weights(tokens * c.top_k), ids(tokens * c.top_k),
        begin(c.num_experts + 1), rows(tokens * c.top_k), pairs(tokens * c.top_k), counts(std::vector<int32_t>(c.num_experts, 5)) {}
  MoeRouteParams Route(const Case& c, int64_t tokens, const float* bias) const {
    MoeRouteParams params = ParamsOf(c, tokens);
    params.logits = logits.data();
    params.choice_bias = c.bias ? bias : nullptr;
    params.expert_ids = ids.data();
    params.weights = weights.data();
    return params;
  }
  MoeSortParams Sort(const Case& c, int64_t tokens) const {
    return {.expert_ids = ids.data(), .weights = weights.data(), .num_tokens = tokens, .top_k = c.top_k, .num_experts = c.num_experts,
            .expert_begin = begin.data(), .token_rows = rows.data(), .pair_weights = pair_weights.data(), .expert_counts = counts.data(),
            .token_pairs = pairs.data()};
  }
  void ExpectAs(const Routed& want, const std::string& where) const {
    EXPECT_EQ(FirstBitDifference(logits.Read(), want.logits.Read()), "") << where << ": logits";
    EXPECT_EQ(FirstBitDifference(weights.Read(), want.weights.Read()), "") << where << ": weights";
    EXPECT_EQ(FirstBitDifference(pair_weights.Read(), want.pair_weights.Read()), "") << where << ": weights of pairs";
    EXPECT_EQ(ids.Read(), want.ids.Read()) << where;
    EXPECT_EQ(begin.Read(), want.begin.Read()) << where;
    EXPECT_EQ(rows.Read(), want.rows.Read()) << where;
    EXPECT_EQ(pairs.Read(), want.pairs.Read()) << where;
    EXPECT_EQ(counts.Read(), want.counts.Read()) << where;
    EXPECT_TRUE(logits.Intact() && weights.Intact() && ids.Intact() && begin.Intact() && rows.Intact() && pairs.Intact() &&
                counts.Intact() && pair_weights.Intact());
  }
  GpuArray<float> logits, weights, pair_weights;
  GpuArray<int32_t> ids, begin, rows, pairs, counts;
};

// Bit for bit what RmsNorm, the matmul, MoeRoute and MoeSort leave one after the other, at every launch of a graph too.
TEST_F(GpuMoe, GateIsNormMatmulRouteAndSort) {
  for (const Case& c : kCases) {
    for (const int64_t k : {576, 2048}) {
      const GpuWeight router(BigWeight(DType::kF32, c.num_experts, k, 61));
      TestRng rng(static_cast<uint64_t>(c.num_experts) * 3);
      const GpuArray<float> norm_weight(rng.NormalVector(k)), bias(rng.NormalVector(c.num_experts));
      for (const int64_t tokens : {1, 2, 5, 8}) {
        if (tokens * c.top_k > 128 || !Chosen(tokens * k * c.num_experts)) continue;
        const GpuArray<float> x(rng.NormalVector(tokens * k)), normed(tokens * k);
        std::vector<int32_t> slots(tokens, 3);
        if (tokens > 2) slots[1] = slots[tokens - 1] = -1;
        const GpuArray<int32_t> gpu_slots(slots);
        const MatmulScratch scratch(1 << 20);
        const CudaExec exec = scratch.Exec(kMatmulModes[0]);
        for (const bool norm : {true, false}) {
          const std::string where = fmt::format("{}, k {}, {} tokens{}", c.name, k, tokens, norm ? ", norm" : "");
          const Routed want(c, tokens);
          Routed got(c, tokens);
          GPU_OK(Backend().rms_norm(exec, {.x = x.data(), .token_stride_x = k, .num_tokens = tokens, .dim = k, .weight = norm_weight.data(),
                                           .eps = 1e-6f, .y = normed.data(), .token_stride_y = k}));
          const float* read = norm ? normed.data() : x.data();
          GPU_OK(Backend().matmul(exec, {.x = read, .x_stride = k, .m = tokens, .weight = router.view(), .y = want.logits.data(),
                                         .y_stride = c.num_experts}));
          GPU_OK(Backend().moe_route(exec, want.Route(c, tokens, bias.data())));
          GPU_OK(Backend().moe_sort(exec, want.Sort(c, tokens), gpu_slots.data()));
          const CudaMoeGateParams gate = {.x = x.data(), .x_stride = k,
                                          .norm = {.norm_weight = norm ? norm_weight.data() : nullptr, .norm_eps = 1e-6f},
                                          .router = router.view(), .logits = got.logits.data(), .route = got.Route(c, tokens, bias.data()),
                                          .sort = got.Sort(c, tokens)};
          ASSERT_TRUE(Backend().moe_gate_fuses(exec, gate)) << where;
          GPU_OK(Backend().moe_gate(exec, gate, gpu_slots.data()));
          got.ExpectAs(want, where);
          GpuGraph graph([&] {
            for (int i = 0; i < 3; ++i) GPU_OK(Backend().moe_gate(exec, gate, gpu_slots.data()));
          });
          GpuArray<int32_t>& counts = got.counts;
          const std::vector<int32_t> once = counts.Read();
          graph.Launch();
          std::vector<int32_t> after = counts.Read();
          for (size_t e = 0; e < after.size(); ++e) EXPECT_EQ(after[e] - once[e], 3 * (once[e] - 5)) << where << " expert " << e;
          counts.Write(once);
          got.ExpectAs(want, where + ", graph");
        }
        EXPECT_TRUE(scratch.Intact());  // the arrivals are zero again
      }
    }
  }
}

}  // namespace
}  // namespace cachalot
