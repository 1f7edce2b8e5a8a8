#include "server/response_cache.h"

#include <gtest/gtest.h>

#include <functional>

#include "kv/policy/eviction_policies.h"

namespace cachalot {
namespace {

Request Greedy(int32_t first) {
  Request request;
  request.prompt_ids = {first, 2, 3};
  request.max_tokens = 10;
  request.cache_salt = "/";
  return request;
}

ResponseCache::Response Answer(const std::string& text) {
  TokenEvent event;
  event.text = text;
  event.finished = true;
  return {event};
}

TEST(ResponseKey, SaysWhetherAndWhatAnAnswerDependsOn) {
  Request request = Greedy(1);
  ASSERT_TRUE(ResponseKey(request, false).has_value());
  EXPECT_EQ(ResponseKey(request, false), ResponseKey(Greedy(1), true));
  request.sampling.seed = 7;
  EXPECT_EQ(ResponseKey(request, true), ResponseKey(Greedy(1), false)) << "a greedy answer has no seed";
  request.priority = 3;
  request.kv_priority = 1;
  request.deadline_us = 5;
  EXPECT_EQ(ResponseKey(request, false), ResponseKey(Greedy(1), false)) << "nor does it depend on when it comes";
  request = Greedy(1);
  request.sampling.temperature = 1;
  EXPECT_FALSE(ResponseKey(request, false).has_value()) << "anything may come";
  EXPECT_TRUE(ResponseKey(request, true).has_value());
  request.all_logits = true;
  EXPECT_FALSE(ResponseKey(request, true).has_value());

  const std::vector<std::function<void(Request*)>> changes = {
      [](Request* r) { r->prompt_ids.push_back(4); },
      [](Request* r) { r->sampling.temperature = 1; },
      [](Request* r) { r->sampling.temperature = 1, r->sampling.seed = 1; },
      [](Request* r) { r->sampling.top_k = 3; },
      [](Request* r) { r->sampling.top_p = 0.5f; },
      [](Request* r) { r->sampling.min_p = 0.5f; },
      [](Request* r) { r->sampling.repetition_penalty = 1.5f; },
      [](Request* r) { r->sampling.presence_penalty = 0.5f; },
      [](Request* r) { r->sampling.frequency_penalty = 0.5f; },
      [](Request* r) { r->sampling.logit_bias = {{1, 2.0f}}; },
      [](Request* r) { r->sampling.logit_bias = {{1, 3.0f}}; },
      [](Request* r) { r->max_tokens = 11; },
      [](Request* r) { r->stop_ids = {3}; },
      [](Request* r) { r->stop_strings = {"ab", "c"}; },
      [](Request* r) { r->stop_strings = {"a", "bc"}; },
      [](Request* r) { r->ignore_eos = true; },
      [](Request* r) { r->min_tokens = 1; },
      [](Request* r) { r->bad_words = {{1, 2}}; },
      [](Request* r) { r->bad_words = {{1}, {2}}; },
      [](Request* r) { r->include_stop = true; },
      [](Request* r) { r->skip_special = false; },
      [](Request* r) { r->num_top_logprobs = 0; },
      [](Request* r) { r->prompt_logprobs = true; },
      [](Request* r) { r->num_prompt_top_logprobs = 1; },
      [](Request* r) { r->n = 2; },
      [](Request* r) { r->reasoning.inside = true; },
      [](Request* r) { r->reasoning.budget = 3; },
      [](Request* r) { r->reasoning.close_ids = {3}; },
      [](Request* r) { r->reasoning.then_ids = {3}; },
      [](Request* r) { r->call.on = true; },
      [](Request* r) { r->call.in_prompt = true; },
      [](Request* r) { r->call.names = {"f"}; },
      [](Request* r) { r->call.middle = "f"; },
      [](Request* r) { r->call.close = std::string("f"); },
      [](Request* r) { r->shown_ids = {1}; },
      [](Request* r) { r->cache_salt = "other/"; },
  };
  std::vector<BlockKey> keys = {*ResponseKey(Greedy(1), true)};
  for (size_t i = 0; i < changes.size(); ++i) {
    Request changed = Greedy(1);
    changes[i](&changed);
    const BlockKey key = *ResponseKey(changed, true);
    for (const BlockKey& other : keys) EXPECT_NE(key, other) << "change " << i;
    keys.push_back(key);
  }
}

TEST(ResponseCache, EveryPolicyKeepsToItsBounds) {
  for (const std::string_view policy : EvictionPolicyNames()) {
    MetricRegistry registry;
    auto cache = ResponseCache::Create(8, std::string(policy), &registry, 100'000);
    ASSERT_TRUE(cache.ok());
    const auto key = [](int32_t i) { return *ResponseKey(Greedy(i), false); };
    EXPECT_EQ((*cache)->Find(key(0)), nullptr);
    (*cache)->Insert(key(0), Answer("zero"));
    (*cache)->Insert(key(0), Answer("another"));
    ASSERT_NE((*cache)->Find(key(0)), nullptr);
    EXPECT_EQ((*cache)->Find(key(0))->front().text, "zero");
    for (int32_t round = 0; round < 50; ++round) {
      (*cache)->Find(key(0));
      (*cache)->Insert(key(100 + round), Answer(std::to_string(round)));
    }
    int32_t num_found = 0;
    for (int32_t round = 0; round < 50; ++round) {
      const auto found = (*cache)->Find(key(100 + round));
      if (found == nullptr) continue;
      ++num_found;
      EXPECT_EQ(found->front().text, std::to_string(round));
    }
    EXPECT_LE(num_found, 8) << policy;
    EXPECT_GE(num_found, 6) << policy;
    (*cache)->Insert(key(1000), Answer(std::string(50'000, 'x')));
    EXPECT_EQ((*cache)->Find(key(1000)), nullptr) << "too large";
    // Bytes bound it too: what somebody still reads stays his.
    for (int32_t i = 2000; i < 2100; ++i) (*cache)->Insert(key(i), Answer(std::string(6'000, 'x')));
    const auto held = (*cache)->Find(key(2099));
    ASSERT_NE(held, nullptr) << policy;
    (*cache)->Clear();
    EXPECT_EQ((*cache)->Find(key(2099)), nullptr);
    EXPECT_EQ(held->front().text.size(), 6'000u);
  }
  MetricRegistry registry;
  EXPECT_FALSE(ResponseCache::Create(8, "nothing", &registry).ok());
}

}  // namespace
}  // namespace cachalot
