#include "kernels/moe_route/moe_route.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "kernels/common/testing.h"

namespace cachalot {
namespace {

struct Routes {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routes Route(MoeRouteParams params, const std::vector<float>& logits, int threads = 1) {
  const int64_t tokens = static_cast<int64_t>(logits.size()) / params.num_experts;
  TestContext ctx(BestIsa(), threads,
                  MoeRouteWorkspaceBytes(threads, params.num_experts, params.num_groups, params.top_k));
  GuardedBuffer<int32_t> ids(tokens * params.top_k);
  GuardedBuffer<float> weights(tokens * params.top_k);
  params.logits = logits.data();
  params.num_tokens = tokens;
  params.expert_ids = ids.data();
  params.weights = weights.data();
  MoeRoute(ctx, params);
  EXPECT_TRUE(ids.Intact() && weights.Intact());
  EXPECT_EQ(ctx.workspace().used(), 0);
  return {{ids.span().begin(), ids.span().end()}, {weights.span().begin(), weights.span().end()}};
}

std::vector<float> Logs(std::vector<float> values) {
  for (float& v : values) v = std::log(v);
  return values;
}

// sigmoid(x) = p
float Logit(float p) {
  return std::log(p / (1 - p));
}

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6f) << i;
}

TEST(MoeRoute, SoftmaxTopK) {
  const Routes r = Route({.num_experts = 4, .top_k = 2}, Logs({1, 4, 2, 3}));
  EXPECT_EQ(r.ids, (std::vector<int32_t>{1, 3}));
  ExpectNear(r.weights, {0.4f, 0.3f});
}

TEST(MoeRoute, MixtralNormalizesOverTheChosen) {
  const Routes r = Route({.num_experts = 4, .top_k = 2, .normalize = true}, Logs({1, 4, 2, 3}));
  EXPECT_EQ(r.ids, (std::vector<int32_t>{1, 3}));
  ExpectNear(r.weights, {4.0f / 7, 3.0f / 7});
}

// Groups {10, 1}, {9, 8}, {2, 7}; the best two groups by maximum are 0 and 1, so 7 cannot be chosen though it
// would be the fourth.
TEST(MoeRoute, V2GroupLimitedGreedy) {
  const Routes r = Route({.num_experts = 6,
                          .top_k = 4,
                          .group_score = MoeGroupScore::kMax,
                          .num_groups = 3,
                          .top_k_groups = 2,
                          .scaling = 16},
                         Logs({10, 1, 9, 8, 2, 7}));
  EXPECT_EQ(r.ids, (std::vector<int32_t>{0, 2, 3, 1}));
  ExpectNear(r.weights, {160.0f / 37, 144.0f / 37, 128.0f / 37, 16.0f / 37});
}

// Choice scores: group 0 {0.9, 0.1}, group 1 {0.6, 0.3 + 0.4}, group 2 {0.5, 0.5}: sums 1.0, 1.3, 1.0. The
// tie goes to group 0. Chosen: 0.9, then expert 3 (0.7, weight 0.3), then expert 2 (0.6).
TEST(MoeRoute, V3BiasChoosesAndDoesNotWeigh) {
  const std::vector<float> bias = {0, 0, 0, 0.4f, 0, 0};
  const Routes r = Route({.num_experts = 6,
                          .top_k = 3,
                          .score = MoeScore::kSigmoid,
                          .choice_bias = bias.data(),
                          .group_score = MoeGroupScore::kTop2Sum,
                          .num_groups = 3,
                          .top_k_groups = 2,
                          .normalize = true,
                          .scaling = 2.5f},
                         {Logit(0.9f), Logit(0.1f), Logit(0.6f), Logit(0.3f), Logit(0.5f), Logit(0.5f)});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{0, 3, 2}));
  ExpectNear(r.weights, {2.5f * 0.9f / 1.8f, 2.5f * 0.3f / 1.8f, 2.5f * 0.6f / 1.8f});
}

// With biases that push every choice score below zero, experts of other groups (which a mask of 0 would
// favour) must still not be chosen.
TEST(MoeRoute, MaskedGroupsStayMaskedBelowZero) {
  const std::vector<float> bias(4, -5.0f);
  const Routes r = Route({.num_experts = 4,
                          .top_k = 2,
                          .score = MoeScore::kSigmoid,
                          .choice_bias = bias.data(),
                          .group_score = MoeGroupScore::kTop2Sum,
                          .num_groups = 2,
                          .top_k_groups = 1},
                         {Logit(0.9f), Logit(0.2f), Logit(0.5f), Logit(0.4f)});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{0, 1}));
  ExpectNear(r.weights, {0.9f, 0.2f});
}

TEST(MoeRoute, EqualScoresTakeTheLowerIndex) {
  const Routes r = Route({.num_experts = 5, .top_k = 3}, {0, 1, 1, 0, 1});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{1, 2, 4}));
}

TEST(MoeRoute, NanLogitsStillGiveDistinctExperts) {
  const Routes r = Route({.num_experts = 4, .top_k = 3, .score = MoeScore::kSigmoid}, {NAN, 1, NAN, NAN});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{1, 0, 2}));
  const Routes all = Route(
      {.num_experts = 4, .top_k = 4, .group_score = MoeGroupScore::kMax, .num_groups = 2, .top_k_groups = 2},
      std::vector<float>(4, NAN));
  EXPECT_EQ(std::set<int32_t>(all.ids.begin(), all.ids.end()).size(), 4u);
}

// Against the definition done the slow way: sort everything.
TEST(MoeRoute, RandomAgainstSorting) {
  TestRng rng(5);
  for (int round = 0; round < 60; ++round) {
    const int32_t groups = static_cast<int32_t>(rng.Int(1, 4)), size = static_cast<int32_t>(rng.Int(2, 9));
    const int32_t experts = groups * size, keep = static_cast<int32_t>(rng.Int(1, groups));
    const int32_t top_k = static_cast<int32_t>(rng.Int(1, keep * size));
    const auto kind = static_cast<MoeGroupScore>(rng.Int(0, 2));
    if (kind == MoeGroupScore::kNone && top_k > experts) continue;
    const auto logits = rng.NormalVector(7 * experts), bias = rng.NormalVector(experts, 0.3f);
    const MoeRouteParams params{.num_experts = experts,
                                .top_k = top_k,
                                .score = MoeScore::kSigmoid,
                                .choice_bias = bias.data(),
                                .group_score = kind,
                                .num_groups = groups,
                                .top_k_groups = keep};
    const Routes got = Route(params, logits, 2);
    for (int token = 0; token < 7; ++token) {
      std::vector<float> choice(experts);
      for (int e = 0; e < experts; ++e)
        choice[e] = 1 / (1 + std::exp(-logits[token * experts + e])) + bias[e];
      std::vector<int32_t> order(experts), group_order(groups);
      std::iota(order.begin(), order.end(), 0);
      std::iota(group_order.begin(), group_order.end(), 0);
      std::vector<float> group_score(groups);
      for (int g = 0; g < groups; ++g) {
        std::vector<float> sorted(choice.begin() + g * size, choice.begin() + (g + 1) * size);
        std::sort(sorted.rbegin(), sorted.rend());
        group_score[g] = kind == MoeGroupScore::kMax ? sorted[0] : sorted[0] + sorted[1];
      }
      std::stable_sort(group_order.begin(), group_order.end(),
                       [&](int a, int b) { return group_score[a] > group_score[b]; });
      const std::set<int32_t> kept(group_order.begin(), group_order.begin() + keep);
      if (kind != MoeGroupScore::kNone) std::erase_if(order, [&](int e) { return !kept.contains(e / size); });
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return choice[a] > choice[b]; });
      for (int i = 0; i < top_k; ++i) EXPECT_EQ(got.ids[token * top_k + i], order[i]);
    }
  }
}

TEST(MoeSort, HandWorked) {
  TestContext ctx(BestIsa());
  const std::vector<int32_t> ids = {2, 0, 0, 3, 2, 3};
  const std::vector<float> weights = {1, 2, 3, 4, 5, 6};
  std::vector<int32_t> begin(6), rows(6), token_pairs(6);
  std::vector<float> sorted(6);
  MoeSort(ctx, {.expert_ids = ids.data(),
                .weights = weights.data(),
                .num_tokens = 3,
                .top_k = 2,
                .num_experts = 5,
                .expert_begin = begin.data(),
                .token_rows = rows.data(),
                .pair_weights = sorted.data(),
                .token_pairs = token_pairs.data()});
  EXPECT_EQ(token_pairs, (std::vector<int32_t>{0, 2, 1, 4, 3, 5}));
  EXPECT_EQ(begin, (std::vector<int32_t>{0, 2, 2, 4, 6, 6}));
  EXPECT_EQ(rows, (std::vector<int32_t>{0, 1, 0, 2, 1, 2}));
  EXPECT_EQ(sorted, (std::vector<float>{2, 3, 1, 5, 4, 6}));
}

TEST(MoeSort, EmptyBatch) {
  TestContext ctx(BestIsa());
  std::vector<int32_t> begin(4, -1);
  MoeSort(ctx, {.num_tokens = 0, .top_k = 2, .num_experts = 3, .expert_begin = begin.data()});
  EXPECT_EQ(begin, (std::vector<int32_t>{0, 0, 0, 0}));
}

}  // namespace
}  // namespace cachalot
