#include "kernels/sample/sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "kernels/common/testing.h"
#include "kernels/sample/draw.h"
#include "kernels/sample/nucleus.h"

namespace cachalot {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Sampled {
  SampleRowResult result;
  std::vector<TokenLogprob> top;
  std::vector<float> logits;  // afterwards
};

// In a workspace of exactly the promised size.
Sampled Sample(Isa isa, std::vector<float> logits, SampleRowParams params) {
  TestContext ctx(isa, 1, SampleWorkspaceBytes(static_cast<int32_t>(logits.size())));
  Sampled sampled;
  sampled.top.resize(std::max(params.num_top_logprobs, 0));
  params.logits = logits.data();
  params.vocab = static_cast<int32_t>(logits.size());
  sampled.result = SampleRow(ctx, params, sampled.top);
  sampled.logits = std::move(logits);
  EXPECT_EQ(ctx.workspace().used(), 0);
  return sampled;
}

std::vector<float> Logs(std::vector<float> values) {
  for (float& v : values) v = std::log(v);
  return values;
}

// The tokens drawn at positions [0, draws) and how often.
std::map<int32_t, int> Histogram(Isa isa, const std::vector<float>& logits, const SamplingParams& sampling,
                                 int draws) {
  TestContext ctx(isa, 1, SampleWorkspaceBytes(static_cast<int32_t>(logits.size())));
  std::map<int32_t, int> histogram;
  for (int i = 0; i < draws; ++i) {
    std::vector<float> row = logits;
    ++histogram[SampleRow(ctx,
                          {.logits = row.data(),
                           .vocab = static_cast<int32_t>(row.size()),
                           .sampling = sampling,
                           .position = i},
                          {})
                    .token_id];
  }
  return histogram;
}

std::set<int32_t> Support(Isa isa, const std::vector<float>& logits, const SamplingParams& sampling) {
  std::set<int32_t> support;
  for (auto [token, count] : Histogram(isa, logits, sampling, 400)) support.insert(token);
  return support;
}

TEST(Sample, GreedyTakesTheFirstOfTheLargest) {
  for (Isa isa : TestableIsas()) {
    for (int32_t vocab : {1, 2, 7, 8, 9, 31, 32, 33, 100, 1000}) {
      TestRng rng(vocab);
      for (int round = 0; round < 20; ++round) {
        std::vector<float> logits = rng.NormalVector(vocab);
        const auto a = rng.Int(0, vocab - 1), b = rng.Int(0, vocab - 1);
        logits[a] = logits[b] = 9;
        EXPECT_EQ(Sample(isa, logits, {}).result.token_id, std::min(a, b)) << IsaName(isa) << " " << vocab;
      }
    }
  }
}

TEST(Sample, NansAndInfinities) {
  for (Isa isa : TestableIsas()) {
    for (float temperature : {0.0f, 1.0f, 1e-40f, 1e30f}) {
      SampleRowParams params{.sampling = {.temperature = temperature}, .num_top_logprobs = 2};
      const Sampled one = Sample(isa, {NAN, -kInf, NAN, 3, -kInf}, params);
      EXPECT_EQ(one.result.token_id, 3);
      EXPECT_EQ(one.result.logprob, 0);
      EXPECT_EQ(one.top[0].token_id, 3);
      EXPECT_EQ(one.top[1].token_id, -1);
      const Sampled none = Sample(isa, {NAN, -kInf, NAN, -kInf}, params);
      EXPECT_EQ(none.result.token_id, 0);
      EXPECT_FLOAT_EQ(none.result.logprob, -std::log(4.0f));
      const Sampled infinite = Sample(isa, {1, 2, kInf, 3}, params);
      EXPECT_EQ(infinite.result.token_id, 2);
      EXPECT_EQ(infinite.result.logprob, 0);
      for (const SamplingParams& sampling : {SamplingParams{.temperature = temperature, .top_k = 2},
                                             SamplingParams{.temperature = temperature, .top_p = 0.5f},
                                             SamplingParams{.temperature = temperature, .min_p = 2.0f}}) {
        EXPECT_EQ(Sample(isa, {NAN, -kInf, NAN, 3, -kInf}, {.sampling = sampling}).result.token_id, 3);
        EXPECT_EQ(Sample(isa, {NAN, NAN, -kInf}, {.sampling = sampling}).result.token_id, 0);
        EXPECT_EQ(Sample(isa, {0, kInf, 0}, {.sampling = sampling}).result.token_id, 1);
      }
    }
  }
}

TEST(Sample, PenaltiesByHand) {
  const std::vector<LogitBias> bias = {
      {0, 1.0f}, {4, -kInf}, {99, 5.0f}, {-1, 5.0f}};  // the last two do not exist
  const std::vector<TokenCount> counts = {{0, 1, 0}, {1, 0, 3}, {2, 2, 1}, {3, 0, 0}};
  SamplingParams sampling;
  sampling.repetition_penalty = 2.0f;
  sampling.presence_penalty = 0.25f;
  sampling.frequency_penalty = 0.5f;
  for (Isa isa : TestableIsas()) {
    const Sampled s = Sample(isa, {3, 2, -1, 5, 100},
                             {.sampling = sampling, .bias = bias, .counts = counts, .num_top_logprobs = 1});
    // 0: (3 + 1) / 2; 1: 2 / 2 - 3 * 0.5 - 0.25; 2: -1 * 2 - 0.5 - 0.25; 3: unseen; 4: forbidden.
    EXPECT_EQ(s.logits, (std::vector<float>{2, -0.75f, -2.75f, 5, -kInf}));
    EXPECT_EQ(s.result.token_id, 3);
    // Log-probabilities are those of the unmodified logits.
    EXPECT_EQ(s.top[0].token_id, 4);
    EXPECT_FLOAT_EQ(s.top[0].logprob, 0);
    EXPECT_FLOAT_EQ(s.result.logprob, -95);
  }
}

TEST(Sample, TopKKeepsTheBestAndTheLowerIdsAmongEquals) {
  for (Isa isa : TestableIsas()) {
    EXPECT_EQ(Support(isa, {1, 2, 1, 2, 2}, {.temperature = 1, .top_k = 1}), (std::set<int32_t>{1}));
    EXPECT_EQ(Support(isa, {1, 2, 1, 2, 2}, {.temperature = 1, .top_k = 2}), (std::set<int32_t>{1, 3}));
    EXPECT_EQ(Support(isa, {1, 2, 1, 2, 2}, {.temperature = 1, .top_k = 4}), (std::set<int32_t>{0, 1, 3, 4}));
    EXPECT_EQ(Support(isa, {1, 2, 1, 2, 2}, {.temperature = 1, .top_k = 50}),
              (std::set<int32_t>{0, 1, 2, 3, 4}));
  }
}

TEST(Sample, TopPKeepsTheFewestThatReachIt) {
  const std::vector<float> logits = Logs({0.125f, 0.5f, 0.25f, 0.125f});
  for (Isa isa : TestableIsas()) {
    EXPECT_EQ(Support(isa, logits, {.temperature = 1, .top_p = 0.0f}), (std::set<int32_t>{1}));
    EXPECT_EQ(Support(isa, logits, {.temperature = 1, .top_p = 0.49f}), (std::set<int32_t>{1}));
    EXPECT_EQ(Support(isa, logits, {.temperature = 1, .top_p = 0.6f}), (std::set<int32_t>{1, 2}));
    EXPECT_EQ(Support(isa, logits, {.temperature = 1, .top_p = 0.8f}), (std::set<int32_t>{0, 1, 2}));
    EXPECT_EQ(Support(isa, logits, {.temperature = 1, .top_p = 1.0f}), (std::set<int32_t>{0, 1, 2, 3}));
    // After top-k, top-p is a part of what is left: 0.5 / 0.75 = 0.67.
    EXPECT_EQ(Support(isa, logits, {.temperature = 1, .top_k = 2, .top_p = 0.6f}), (std::set<int32_t>{1}));
    // At temperature 1/2 the probabilities are as the squares: 16 : 4 : 1 : 1 of 22; the first has 0.727.
    EXPECT_EQ(Support(isa, logits, {.temperature = 0.5f, .top_p = 0.7f}), (std::set<int32_t>{1}));
  }
}

TEST(Sample, MinPIsRelativeToTheBest) {
  const std::vector<float> logits = Logs({0.1f, 0.5f, 0.26f, 0.14f});
  for (Isa isa : TestableIsas()) {
    EXPECT_EQ(Support(isa, logits, {.temperature = 1, .min_p = 0.5f}), (std::set<int32_t>{1, 2}));
    EXPECT_EQ(Support(isa, logits, {.temperature = 1, .min_p = 0.25f}), (std::set<int32_t>{1, 2, 3}));
    EXPECT_EQ(Support(isa, logits, {.temperature = 1, .top_k = 3, .min_p = 0.05f}),
              (std::set<int32_t>{1, 2, 3}));
    EXPECT_EQ(Support(isa, logits, {.temperature = 1, .min_p = 7.0f}), (std::set<int32_t>{1}));
  }
}

// Chi-squared over 6 tokens, 40,000 draws. The limit for 5 degrees of freedom at 1e-6 is 35.9 (the draws are
// fixed by the seed, so the test cannot flake). Power: a token whose probability is off by 10 % of itself at
// p = 0.2 adds 40,000 * 0.2 * 0.01 = 80: found.
TEST(Sample, DrawsFollowTheDistribution) {
  const std::vector<float> p = {0.05f, 0.3f, 0.2f, 0.25f, 0.15f, 0.05f};
  constexpr int kDraws = 40000;
  for (Isa isa : TestableIsas()) {
    for (uint64_t seed : {0u, 1u, 12345u}) {
      for (int32_t top_k : {0, 6, 4}) {  // 4: the first and the last are cut off
        const auto histogram =
            Histogram(isa, Logs(p), {.temperature = 1, .top_k = top_k, .seed = seed}, kDraws);
        double chi_squared = 0;
        for (int i = 0; i < 6; ++i) {
          const bool cut = top_k == 4 && (i == 0 || i == 5);
          const double expected = cut ? 0 : kDraws * p[i] / (top_k == 4 ? 0.9 : 1.0);
          const int seen = histogram.contains(i) ? histogram.at(i) : 0;
          if (cut) {
            EXPECT_EQ(seen, 0);
          } else {
            chi_squared += (seen - expected) * (seen - expected) / expected;
          }
        }
        EXPECT_LT(chi_squared, 35.9) << IsaName(isa) << " seed " << seed << " top_k " << top_k;
      }
    }
  }
}

TEST(Sample, TemperatureSharpens) {
  // Odds 2 : 1 become 4 : 1 at temperature 1/2; of 20,000 draws 16,000 +- 57 (one sigma).
  const auto histogram = Histogram(BestIsa(), Logs({2, 1}), {.temperature = 0.5f, .seed = 3}, 20000);
  EXPECT_NEAR(histogram.at(0), 16000, 6 * 57);
}

TEST(Sample, TheDrawIsAFunctionOfSeedAndPosition) {
  TestRng rng(1);
  const std::vector<float> logits = rng.NormalVector(1000);
  std::set<int32_t> seen;
  for (int64_t position = 0; position < 50; ++position) {
    const SampleRowParams params{.sampling = {.temperature = 1, .seed = 5}, .position = position};
    const int32_t token = Sample(BestIsa(), logits, params).result.token_id;
    EXPECT_EQ(Sample(BestIsa(), logits, params).result.token_id, token);
    seen.insert(token);
  }
  EXPECT_GT(seen.size(), 25u);
  // What does not truncate does not change the draw.
  for (int64_t position = 0; position < 50; ++position) {
    const SampleRowParams all{.sampling = {.temperature = 1, .seed = 5}, .position = position};
    SampleRowParams most = all;
    most.sampling.top_k = 999;
    most.sampling.top_p = 0.99999f;
    EXPECT_NEAR(Sample(BestIsa(), logits, all).result.token_id,
                Sample(BestIsa(), logits, most).result.token_id, 1);
  }
}

TEST(Sample, UniformsLookUniformAndSeedsIndependent) {
  EXPECT_EQ(UniformAt(0, 0), UniformAt(0, 0));
  constexpr int kCount = 20000;
  for (uint64_t seed : {0u, 1u, 2u, 77u}) {
    double sum = 0, with_next_seed = 0, with_next_position = 0;
    std::vector<int> bins(16);
    for (int i = 0; i < kCount; ++i) {
      const double u = UniformAt(seed, i);
      ASSERT_TRUE(u >= 0 && u < 1);
      sum += u;
      with_next_seed += (u - 0.5) * (UniformAt(seed + 1, i) - 0.5);
      with_next_position += (u - 0.5) * (UniformAt(seed, i + 1) - 0.5);
      ++bins[static_cast<int>(u * 16)];
    }
    // Six sigma each: sigma of the mean is 0.289 / sqrt(n), of a product's mean 1/12 / sqrt(n).
    EXPECT_NEAR(sum / kCount, 0.5, 6 * 0.289 / std::sqrt(kCount));
    EXPECT_NEAR(with_next_seed / kCount, 0, 6 / 12.0 / std::sqrt(kCount));
    EXPECT_NEAR(with_next_position / kCount, 0, 6 / 12.0 / std::sqrt(kCount));
    double chi_squared = 0;
    for (int count : bins) chi_squared += (count - kCount / 16.0) * (count - kCount / 16.0) / (kCount / 16.0);
    EXPECT_LT(chi_squared, 60);  // 15 degrees of freedom at about 2e-7
  }
}

// Large rows: the kept set against a full sort, by drawing at the ends of the interval.
TEST(Sample, TruncationOfLargeRowsAgreesWithSorting) {
  constexpr int32_t kVocab = 12000;
  for (float spread : {0.5f, 3.0f}) {
    TestRng rng(9);
    std::vector<float> logits = rng.NormalVector(kVocab, spread);
    for (float& v : logits) v = std::round(v * 64) / 64;  // many ties
    std::vector<int32_t> order(kVocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
    double total = 0;
    for (float v : logits) total += std::exp(double{v} - logits[order[0]]);
    for (float top_p : {0.05f, 0.5f, 0.9f}) {
      size_t kept = 0;
      for (double sum = 0; sum < double{top_p} * total; ++kept)
        sum += std::exp(double{logits[order[kept]]} - logits[order[0]]);
      std::set<int32_t> allowed(order.begin(), order.begin() + kept + 1);
      for (Isa isa : TestableIsas()) {
        for (int64_t position = 0; position < 8; ++position) {
          const int32_t token =
              Sample(isa, logits, {.sampling = {.temperature = 1, .top_p = top_p}, .position = position})
                  .result.token_id;
          EXPECT_TRUE(allowed.contains(token)) << top_p;
        }
      }
    }
    for (int32_t k : {1, 2, 40, 1000, 11999}) {
      const std::set<int32_t> allowed(order.begin(), order.begin() + k);
      for (Isa isa : TestableIsas()) {
        for (int64_t position = 0; position < 6; ++position) {
          const int32_t token =
              Sample(isa, logits, {.sampling = {.temperature = 9, .top_k = k}, .position = position})
                  .result.token_id;
          EXPECT_TRUE(allowed.contains(token)) << k;
        }
      }
    }
  }
}

// The cut itself against a full sort, on rows with many ties and for targets all along the way.
TEST(Sample, NucleusCutIsTheSortedOnes) {
  for (float spread : {0.01f, 0.5f, 4.0f, 40.0f}) {
    TestRng rng(3);
    std::vector<TokenLogit> sorted(3000);
    std::vector<float> logits(sorted.size()), weights(sorted.size());
    for (size_t i = 0; i < logits.size(); ++i) {
      logits[i] = std::round(rng.Normal() * spread * 32) / 32;
      sorted[i] = {logits[i], static_cast<int32_t>(i)};
    }
    std::sort(sorted.begin(), sorted.end(), Better);
    const float largest = sorted[0].logit;
    double total = 0;
    for (size_t i = 0; i < logits.size(); ++i) total += weights[i] = std::exp2(logits[i] - largest);
    std::vector<double> bins(kNucleusBins);
    std::vector<TokenLogit> list(logits.size());
    for (float part : {0.0f, 0.1f, 0.3f, 0.77f, 0.95f, 0.999f}) {
      size_t last = 0;
      for (double sum = 0; last + 1 < sorted.size(); ++last) {
        sum += weights[sorted[last].token_id];
        if (sum >= part * total) break;
      }
      const TokenLogit cut = NucleusCut(logits.data(), weights.data(), static_cast<int32_t>(logits.size()),
                                        largest, 1.0f, part * total, bins.data(), list.data());
      EXPECT_EQ(cut.token_id, sorted[last].token_id) << spread << " " << part;
    }
  }
}

TEST(Sample, DrawIndexInvertsTheCumulativeDistribution) {
  TestRng rng(8);
  std::vector<float> weights(5000);
  for (float& w : weights) w = rng.Int(0, 3) == 0 ? 0.0f : rng.Uniform(0.0f, 1.0f);
  std::fill(weights.begin() + 1000, weights.begin() + 3100, 0.0f);  // a whole block without weight
  std::vector<double> sums(DrawScratchDoubles(5000));
  for (float least : {0.0f, 0.6f}) {
    double total = 0;
    for (float w : weights) total += w >= least ? w : 0;
    for (int i = 0; i < 2000; ++i) {
      const double uniform = i == 0 ? 0 : i == 1 ? 1 - 0x1p-53 : rng.Uniform();
      const int32_t index = DrawIndex(weights.data(), 5000, least, uniform, sums.data());
      ASSERT_TRUE(weights[index] > 0 && weights[index] >= least);
      double before = 0;
      for (int32_t j = 0; j < index; ++j) before += weights[j] >= least ? weights[j] : 0;
      ASSERT_LE(before, uniform * total + 1e-9);
      ASSERT_GE(before + weights[index], uniform * total - 1e-9);
    }
  }
}

TEST(Sample, TopLogprobs) {
  TestRng rng(4);
  for (Isa isa : TestableIsas()) {
    std::vector<float> logits = rng.NormalVector(5001, 2.0f);
    logits[17] = NAN;
    logits[18] = -kInf;
    logits[19] = logits[20] = 11;
    const Sampled s = Sample(isa, logits, {.num_top_logprobs = 20});
    std::vector<TokenLogprob> want(20);
    TopLogprobs(logits, want);
    double sum = 0;
    for (float v : logits) sum += std::isnan(v) ? 0 : std::exp(double{v});
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(s.top[i].token_id, want[i].token_id);
      EXPECT_NEAR(s.top[i].logprob, want[i].logprob, 2e-6);
      EXPECT_NEAR(want[i].logprob, logits[want[i].token_id] - std::log(sum), 2e-6);
      EXPECT_EQ(LogprobOf(logits, want[i].token_id), want[i].logprob);
    }
    EXPECT_EQ(want[0].token_id, 19);
    EXPECT_EQ(want[1].token_id, 20);
    EXPECT_EQ(s.result.token_id, 19);
    EXPECT_NEAR(s.result.logprob, want[0].logprob, 2e-6);
    EXPECT_EQ(LogprobOf(logits, 17), -kInf);
    // n = 0: the chosen token's only.
    EXPECT_NEAR(Sample(isa, logits, {.num_top_logprobs = 0}).result.logprob, want[0].logprob, 2e-6);
  }
}

}  // namespace
}  // namespace cachalot
