// What tests of the tiers below the KV cache share: a tiny model whose cache is far too small for all prompts, and what it answers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/model_bundle.h"

namespace cachalot {

struct TierSetup {
  std::string model = "tiny-llama";  // a dummy
  std::string device = "cpu";
  std::string kv_type = "auto";
  int64_t host_bytes = 0;
  std::string disk = "";
  bool prefix_cache = true;
  int64_t kv_tokens = 640;      // of prompts with kTierPromptTokens and more tokens
  int32_t gpu_depth = 1;
  bool gpu_graphs = true;
  int32_t gpu_layers = -1;
  int64_t slice_bytes = 0;
  std::string trace_streams = "";
};

struct TierAnswer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  int32_t num_cached = 0;
  Status error;
  // What tiers must not change.
  bool Same(const TierAnswer& other) const { return error.ok() && tokens == other.tokens && logprobs == other.logprobs; }
};

inline constexpr int32_t kTierPrompts = 8;
inline constexpr int32_t kTierPromptTokens = 160;
inline constexpr int32_t kTierAnswerTokens = 8;

// The first half of each is one other's too.
inline std::vector<int32_t> TierPrompt(int32_t number) {
  std::vector<int32_t> prompt;
  const int32_t length = kTierPromptTokens + 3 * number;
  for (int32_t i = 0; i < length; ++i) prompt.push_back(3 + (i * 7 + (i < kTierPromptTokens / 2 ? number / 2 : number + 20) * 31) % 200);
  return prompt;
}

class TierModel {
 public:
  explicit TierModel(const TierSetup& setup) {
    ModelOptions options;
    options.dummy = setup.model;
    options.num_threads = 1;
    options.max_seqs = 4;
    options.context = 256;
    options.max_step_tokens = 64;
    options.kv_tokens = setup.kv_tokens;
    options.kv.type = setup.kv_type;
    options.block_tokens = 8;
    options.deterministic = true;
    options.device = setup.device;
    options.gpu_depth = setup.gpu_depth;
    options.gpu_graphs = setup.gpu_graphs;
    options.gpu_layers = setup.gpu_layers;
    options.kv_slice_bytes = setup.slice_bytes;
    options.trace_streams = setup.trace_streams;
    options.kv_host_bytes = setup.host_bytes;
    options.kv_disk_dir = setup.disk;
    auto bundle = OpenModel(options);
    EXPECT_TRUE(bundle.ok()) << bundle.status().ToString();
    bundle_ = std::move(bundle).value();
    EngineOptions engine_options;
    // So few tokens of prompts in a step tell no rate, so that what a tier has is always taken; and time stands still.
    engine_options.max_batch_tokens = 15;
    engine_options.clock = &clock_;
    engine_options.enable_prefix_caching = setup.prefix_cache;
    engine_options.kv_host_bytes = setup.host_bytes;
    engine_options.kv_disk_dir = setup.disk;
    engine_options.kv_disk_bytes = 64 << 20;
    auto engine = Engine::Create(bundle_.runtime.get(), nullptr, engine_options);
    EXPECT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(engine).value();
  }

  uint64_t Submit(int32_t number, TierAnswer* answer) {
    Request request;
    request.prompt_ids = TierPrompt(number);
    request.max_tokens = kTierAnswerTokens;
    request.num_top_logprobs = 0;
    auto id = engine_->Submit(std::move(request), [answer](const RequestOutput& output) {
      answer->tokens.insert(answer->tokens.end(), output.token_ids.begin(), output.token_ids.end());
      answer->logprobs.insert(answer->logprobs.end(), output.logprobs.begin(), output.logprobs.end());
      answer->num_cached = std::max(answer->num_cached, output.num_cached_tokens);
      if (!output.error.ok()) answer->error = output.error;
    });
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    return *id;
  }
  void Run() { EXPECT_TRUE(engine_->RunUntilIdle().ok()); }
  TierAnswer Ask(int32_t number) {
    TierAnswer answer;
    Submit(number, &answer);
    Run();
    return answer;
  }
  // One after the other.
  std::vector<TierAnswer> AskAll() {
    std::vector<TierAnswer> answers;
    for (int32_t number = 0; number < kTierPrompts; ++number) answers.push_back(Ask(number));
    return answers;
  }
  Engine& engine() { return *engine_; }
  ModelBundle& bundle() { return bundle_; }
  const KvTierStats& host() const { return engine_->stats().kv_host; }
  const KvTierStats& disk() const { return engine_->stats().kv_disk; }

 private:
  ManualClock clock_;
  ModelBundle bundle_;
  std::unique_ptr<Engine> engine_;
};

// Without any cache.
inline std::vector<TierAnswer> PlainAnswers(TierSetup setup) {
  setup.host_bytes = 0;
  setup.disk = "";
  setup.prefix_cache = false;
  setup.kv_tokens = 0;
  return TierModel(setup).AskAll();
}

inline void ExpectSameAnswers(const std::vector<TierAnswer>& got, const std::vector<TierAnswer>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].Same(want[i])) << what << ", prompt " << i << ": " << got[i].tokens.size() << " tokens, " << got[i].error.ToString();
  }
}

inline int32_t NumCached(const std::vector<TierAnswer>& answers) {
  int32_t count = 0;
  for (const TierAnswer& answer : answers) count += answer.num_cached;
  return count;
}

}  // namespace cachalot
