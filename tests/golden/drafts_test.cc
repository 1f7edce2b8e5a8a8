// Speculation through real models: whoever drafts and however well, what comes out is what comes out without. Token for
// token and bit for bit, sampled or greedy, because drafts are compared with the model's own draw at their place.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "golden/drafts_harness.h"

namespace cachalot {
namespace {

struct Case {
  const char* model;
  Drafting setup;
  double least_accepted;  // share
};

TEST(Drafts, TheSameTokensAndBitsAsWithout) {
  const Case cases[] = {
      {"llama", {.kind = DraftKind::kNgram}, 0.02},
      {"llama", {.kind = DraftKind::kNgram, .always = false}, 0},
      // What is sampled from random weights, nobody guesses often.
      {"llama", {.kind = DraftKind::kModel, .draft = "llama"}, 0.1},
      {"llama", {.kind = DraftKind::kModel, .draft = "llama", .max_drafts = 16}, 0.03},
      {"llama", {.kind = DraftKind::kModel, .draft = "qwen2"}, 0},
      {"mistral", {.kind = DraftKind::kModel, .draft = "llama", .max_drafts = 3}, 0},
      {"mistral", {.kind = DraftKind::kModel, .draft = "mistral"}, 0.1},
      {"mistral", {.kind = DraftKind::kModel, .draft = "mistral", .always = false}, 0},
      {"dummy tiny-deepseek-v3", {.kind = DraftKind::kMtp}, 0},
      {"dummy tiny-deepseek-v3", {.kind = DraftKind::kMtp, .max_drafts = 1, .always = false}, 0},
      {"dummy tiny-deepseek-v3", {.kind = DraftKind::kNgram}, 0},
  };
  std::string plain_model;
  std::vector<std::vector<DraftAnswer>> plain;
  for (const Case& test : cases) {
    SCOPED_TRACE(fmt::format("{}, drafts {} {}, at most {}", test.model, static_cast<int>(test.setup.kind), test.setup.draft,
                             test.setup.max_drafts));
    if (plain_model != test.model) plain = DraftAnswers(test.model, {});
    plain_model = test.model;
    EngineStats stats;
    EXPECT_EQ(DraftAnswers(test.model, test.setup, &stats), plain);
    // How many drafts pay, and whether any is made, is the clock's to say where that is asked (depth_controller_test.cc).
    if (!test.setup.always) continue;
    EXPECT_GT(stats.draft_tokens, 0);
    EXPECT_GE(static_cast<double>(stats.accepted_tokens), test.least_accepted * static_cast<double>(stats.draft_tokens));
  }
}

// Too little memory: sequences are preempted between their drafts, and go on.
TEST(Drafts, PreemptionChangesNothing) {
  const auto plain = DraftAnswers("llama", {});
  for (const bool swap : {false, true}) {
    for (const DraftKind kind : {DraftKind::kNgram, DraftKind::kModel}) {
      EngineStats stats;
      const Drafting setup{.kind = kind, .draft = kind == DraftKind::kModel ? "llama" : "", .kv_tokens = 150, .swap = swap};
      EXPECT_EQ(DraftAnswers("llama", setup, &stats), plain) << static_cast<int>(kind) << " " << swap;
      EXPECT_GT(stats.preemptions, 0);
      EXPECT_GT(stats.accepted_tokens, 0);
    }
  }
}

// What was rejected is written over: a token's codes depend on that token alone.
TEST(Drafts, QuantisedCachesRollBack) {
  for (const char* model : {"llama", "dummy tiny-deepseek-v3"}) {
    for (const char* type : {"k6v8", "k4v4"}) {
      const auto plain = DraftAnswers(model, {.kv_type = type});
      for (const int64_t kv_tokens : {int64_t{0}, int64_t{150}}) {
        EngineStats stats;
        EXPECT_EQ(DraftAnswers(model, {.kind = DraftKind::kNgram, .kv_tokens = kv_tokens, .swap = true, .kv_type = type}, &stats), plain)
            << model << " " << type << " " << kv_tokens;
        EXPECT_GT(stats.draft_tokens, stats.accepted_tokens);
      }
    }
  }
}

TEST(Drafts, OnlyVerifiedTokensAreCached) {
  ExpectOnlyVerifiedTokensCached("llama", {.kind = DraftKind::kModel, .draft = "qwen2"}, {});
}

TEST(Drafts, StopStringsEndInsideDrafts) {
  ExpectStopStringsEndInsideDrafts("llama", {.kind = DraftKind::kNgram});
  ExpectStopStringsEndInsideDrafts("llama", {.kind = DraftKind::kModel, .draft = "llama"});
  ExpectStopStringsEndInsideDrafts("dummy tiny-deepseek-v3", {.kind = DraftKind::kMtp, .accept_fixed = 1});
}

// Pearson's statistic of two samples of one distribution.
double ChiSquare(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  double na = 0, nb = 0, sum = 0;
  for (size_t i = 0; i < a.size(); ++i) na += static_cast<double>(a[i]), nb += static_cast<double>(b[i]);
  for (size_t i = 0; i < a.size(); ++i) {
    const double both = static_cast<double>(a[i] + b[i]);
    if (both == 0) continue;
    const double ea = both * na / (na + nb), eb = both * nb / (na + nb);
    sum += (static_cast<double>(a[i]) - ea) * (static_cast<double>(a[i]) - ea) / ea +
           (static_cast<double>(b[i]) - eb) * (static_cast<double>(b[i]) - eb) / eb;
  }
  return sum;
}

// The distribution itself, from independent seeds, with and without drafts. Top-k leaves 8 tokens, so 7 degrees of
// freedom: 42 is exceeded by chance in one case of 10^6. Power: of a verification that accepts wrongly, so that a tenth of
// all answers has the drafted token instead of its own, the statistic has a mean above 70 at this size and stays below 42
// in less than 2 % of cases; the last lines do just that to the counts.
TEST(Drafts, SampleTheSameDistribution) {
  constexpr int kAnswers = 3000, kPlace = 2;
  std::vector<std::vector<int64_t>> counts(2, std::vector<int64_t>(8));
  std::vector<int32_t> ids;
  int64_t accepted = 0;
  for (const bool drafts : {false, true}) {
    Drafting setup{.max_drafts = 3, .max_seqs = 16};
    if (drafts) setup.kind = DraftKind::kModel, setup.draft = "llama";
    DraftingModel opened("llama", setup);
    std::vector<std::vector<DraftAnswer>> answers(kAnswers);
    for (int i = 0; i < kAnswers; ++i) {
      Request request;
      request.prompt_ids = DraftPrompt(9, 2);
      request.max_tokens = 4;
      request.ignore_eos = true;
      // Only these tokens: what stands at one place has the same distribution given what stands in front of it.
      request.sampling.temperature = 1.5f;
      request.sampling.top_k = 8;
      request.sampling.seed = static_cast<uint64_t>(i + (drafts ? 1'000'000 : 0));
      for (int32_t id = 0; id < 8; ++id) request.sampling.logit_bias.push_back({20 + id, 100.0f});
      opened.Submit(std::move(request), &answers[static_cast<size_t>(i)]);
    }
    accepted = opened.Run().accepted_tokens;
    for (const auto& answer : answers) {
      const int32_t token = answer[0].tokens[kPlace];
      ASSERT_GE(token, 20);
      ASSERT_LT(token, 28);
      ++counts[drafts ? 1 : 0][static_cast<size_t>(token - 20)];
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(ChiSquare(counts[0], counts[1]), 42);
  std::vector<int64_t> wrong = counts[1];
  for (size_t i = 1; i < wrong.size(); ++i) {
    const int64_t moved = wrong[i] / 10;
    wrong[i] -= moved;
    wrong[0] += moved;
  }
  EXPECT_GT(ChiSquare(counts[0], wrong), 42) << "what the test is to find";
}

// A model that drafts for itself is always right, whatever batches and prompts in pieces make of it, and also where a
// prompt's beginning came from the cache: then its KV memory holds what it should.
TEST(Drafts, TheSameModelIsAlwaysRight) {
  DraftingModel opened("llama", {.kind = DraftKind::kModel, .draft = "llama", .max_drafts = 3});
  for (int round = 0; round < 2; ++round) {
    std::vector<std::vector<DraftAnswer>> answers(5);
    for (int32_t i = 0; i < 5; ++i) {
      Request request;
      request.prompt_ids = DraftPrompt(10 + 20 * i, i);
      request.max_tokens = 30;
      request.ignore_eos = true;
      opened.Submit(std::move(request), &answers[static_cast<size_t>(i)]);
    }
    const EngineStats& stats = opened.Run();
    EXPECT_EQ(stats.accepted_tokens, stats.draft_tokens);
    EXPECT_GT(stats.draft_tokens, 100 * (round + 1));
    EXPECT_EQ(stats.cache_hit_tokens > 0, round > 0);
  }
}

TEST(Drafts, AFixedAcceptance) {
  DraftingModel opened("llama", {.kind = DraftKind::kModel, .draft = "llama", .max_drafts = 2, .accept_fixed = 0.7f});
  ExpectAFixedAcceptance(&opened);
}

// Accepted unseen, drafts are most of an answer.
TEST(Drafts, OnlyTheFirstTokensOfTheVocabulary) {
  constexpr int32_t kFirst = 100;
  for (const int32_t head_tokens : {0, kFirst}) {
    DraftingModel opened("dummy tiny-deepseek-v3",
                         {.kind = DraftKind::kMtp, .max_drafts = 4, .accept_fixed = 1, .head_tokens = head_tokens});
    std::vector<DraftAnswer> answers;
    Request request;
    request.prompt_ids = DraftPrompt(20, 0);
    request.max_tokens = 60;
    request.ignore_eos = true;
    request.sampling.temperature = 1;  // what is no draft is any token
    opened.Submit(std::move(request), &answers);
    const EngineStats& stats = opened.Run();
    const auto num_above = std::count_if(answers[0].tokens.begin(), answers[0].tokens.end(), [](int32_t id) { return id >= kFirst; });
    EXPECT_GT(stats.accepted_tokens, 40);
    EXPECT_EQ(num_above > 60 - stats.accepted_tokens, head_tokens == 0) << num_above;
  }
}

TEST(Drafts, WhatCannotDraftIsRefused) {
  const auto error = [](auto change) {
    ModelOptions options;
    options.path = LoadGoldenCase("llama")->folder;
    options.context = 64;
    change(&options);
    return OpenModel(options).status().message();
  };
  EXPECT_NE(error([](ModelOptions* o) { o->drafts = DraftKind::kMtp; }).find("no MTP layer"), std::string::npos);
  EXPECT_NE(error([](ModelOptions* o) { o->drafts = DraftKind::kModel; }).find("no draft model is given"), std::string::npos);
  EXPECT_NE(error([](ModelOptions* o) { o->drafts = DraftKind::kNgram, o->max_drafts = 17; }).find("drafts 17"), std::string::npos);
  EXPECT_NE(error([](ModelOptions* o) {
              o->drafts = DraftKind::kModel;
              o->draft_path = "/nowhere";
            }).find("/nowhere"), std::string::npos);
}

}  // namespace
}  // namespace cachalot
