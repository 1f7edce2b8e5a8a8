// MoeRoute and MoeSort with the dimensions of DeepSeek-V3 and Mixtral. Bytes: the logits.
#include "kernels/common/bench.h"
#include "kernels/common/testing.h"
#include "kernels/moe_route/moe_route.h"

namespace cachalot {
namespace {

struct Router {
  std::vector<float> logits, bias, weights;
  std::vector<int32_t> ids;
  MoeRouteParams params;

  Router(int64_t tokens, bool deepseek_v3) {
    TestRng rng(1);
    const int32_t experts = deepseek_v3 ? 256 : 8, top_k = deepseek_v3 ? 8 : 2;
    logits = rng.NormalVector(tokens * experts);
    bias = rng.NormalVector(experts, 0.01f);
    weights.resize(tokens * top_k);
    ids.resize(tokens * top_k);
    params = {.logits = logits.data(),
              .num_tokens = tokens,
              .num_experts = experts,
              .top_k = top_k,
              .normalize = true,
              .expert_ids = ids.data(),
              .weights = weights.data()};
    if (!deepseek_v3) return;
    params.score = MoeScore::kSigmoid;
    params.choice_bias = bias.data();
    params.group_score = MoeGroupScore::kTop2Sum;
    params.num_groups = 8;
    params.top_k_groups = 4;
    params.scaling = 2.5f;
  }
};

void RunRoute(benchmark::State& state, int64_t tokens, bool deepseek_v3) {
  TestContext ctx(BestIsa(), kBenchThreads);
  Router router(tokens, deepseek_v3);
  BenchAgainstRoofs(state, 0, 4.0 * static_cast<double>(router.logits.size()),
                    [&] { MoeRoute(ctx, router.params); });
}

void RunSort(benchmark::State& state, int64_t tokens) {
  TestContext ctx(BestIsa(), kBenchThreads);
  Router router(tokens, true);
  MoeRoute(ctx, router.params);
  std::vector<int32_t> begin(257), rows(router.ids.size());
  std::vector<float> weights(router.ids.size());
  const MoeSortParams params{.expert_ids = router.ids.data(),
                             .weights = router.weights.data(),
                             .num_tokens = tokens,
                             .top_k = 8,
                             .num_experts = 256,
                             .expert_begin = begin.data(),
                             .token_rows = rows.data(),
                             .pair_weights = weights.data()};
  BenchAgainstRoofs(state, 0, 8.0 * static_cast<double>(router.ids.size()), [&] { MoeSort(ctx, params); });
}

const bool kRegistered = [] {
  for (int64_t tokens : {1, 8, 512}) {
    Register(fmt::format("MoeRoute/deepseek-v3/{}", tokens),
             [=](benchmark::State& state) { RunRoute(state, tokens, true); });
    Register(fmt::format("MoeRoute/mixtral/{}", tokens),
             [=](benchmark::State& state) { RunRoute(state, tokens, false); });
    Register(fmt::format("MoeSort/deepseek-v3/{}", tokens),
             [=](benchmark::State& state) { RunSort(state, tokens); });
  }
  return true;
}();

}  // namespace
}  // namespace cachalot
