// What tests of drafting share: a model opened with a drafter, requests of every kind, and all that they are answered.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "engine/engine.h"
#include "engine/model_bundle.h"
#include "golden/golden_case.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {

struct DraftAnswer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<float> top_logprobs;
  std::string text;           // with a tokenizer
  bool stopped = false;       // before its length
  bool operator==(const DraftAnswer&) const = default;
};

struct Drafting {
  DraftKind kind = DraftKind::kNone;
  std::string draft = "";     // a golden case
  int32_t max_drafts = 4;
  bool always = true;
  int64_t kv_tokens = 0;
  bool swap = false;
  int32_t max_seqs = 6;
  float accept_fixed = -1;
  int32_t head_tokens = 0;
  std::string kv_type = "auto";
  std::string device = "cpu";
  bool gpu_exact = true;
  bool gpu_graphs = true;
  int32_t gpu_depth = 1;
};

// A tokenizer that writes every token as three letters of its own.
inline std::string DraftTokenText(int32_t id) {
  return {static_cast<char>('a' + id / 676), static_cast<char>('a' + id / 26 % 26), static_cast<char>('a' + id % 26)};
}
inline std::unique_ptr<Tokenizer> DraftTokenizer(int32_t vocab_size) {
  const std::string folder = testing::TempDir() + "draft_tokenizer";
  std::filesystem::create_directories(folder);
  std::string vocab;
  for (int32_t id = 0; id < vocab_size; ++id) vocab += fmt::format("{}\"{}\": {}", id == 0 ? "" : ", ", DraftTokenText(id), id);
  const std::string json = fmt::format(
      R"({{"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": {{"type": "ByteLevel",
           "add_prefix_space": false, "trim_offsets": true, "use_regex": true}}, "post_processor": null, "decoder":
           {{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}}, "model": {{"type":
           "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
           "fuse_unk": false, "byte_fallback": false, "vocab": {{{}}}, "merges": []}}}})", vocab);
  EXPECT_TRUE(WriteFileAtomically(folder + "/tokenizer.json", json).ok());
  auto tokenizer = Tokenizer::FromFolder(folder);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return std::move(tokenizer).value();
}

class DraftingModel {
 public:
  // model: a golden case, or "dummy NAME". with_text: DraftTokenizer writes the answers.
  DraftingModel(const std::string& model, const Drafting& setup, bool with_text = false) {
    ModelOptions options;
    if (model.starts_with("dummy ")) options.dummy = model.substr(6);
    else options.path = LoadGoldenCase(model)->folder;
    if (!setup.draft.empty()) options.draft_path = LoadGoldenCase(setup.draft)->folder;
    options.num_threads = 1;
    options.max_seqs = setup.max_seqs;
    options.context = 128;
    options.max_step_tokens = 64;
    options.kv_tokens = setup.kv_tokens;
    options.swap_tokens = setup.swap ? 512 : 0;
    options.kv.type = setup.kv_type;
    options.block_tokens = 8;
    options.deterministic = true;
    options.drafts = setup.kind;
    options.max_drafts = setup.max_drafts;
    options.draft_accept_fixed = setup.accept_fixed;
    options.draft_head_tokens = setup.head_tokens;
    options.device = setup.device;
    options.gpu_exact = setup.gpu_exact;
    options.gpu_graphs = setup.gpu_graphs;
    options.gpu_depth = setup.gpu_depth;
    auto bundle = OpenModel(options);
    EXPECT_TRUE(bundle.ok()) << bundle.status().ToString();
    bundle_ = std::move(bundle).value();
    EngineOptions engine_options;
    engine_options.max_batch_tokens = 64;
    engine_options.drafts = setup.kind;
    engine_options.max_drafts = setup.max_drafts;
    engine_options.adaptive_drafts = !setup.always;
    engine_options.preemption = setup.swap ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
    if (with_text) tokenizer_ = DraftTokenizer(bundle_.runtime->info().vocab_size);
    auto engine = Engine::Create(bundle_.runtime.get(), tokenizer_.get(), engine_options);
    EXPECT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(engine).value();
  }

  void Submit(Request request, std::vector<DraftAnswer>* answers) {
    answers->resize(static_cast<size_t>(request.n));
    auto id = engine_->Submit(std::move(request), [answers](const RequestOutput& output) {
      DraftAnswer& answer = answers->at(static_cast<size_t>(output.choice));
      EXPECT_TRUE(output.error.ok()) << output.error.ToString();
      answer.tokens.insert(answer.tokens.end(), output.token_ids.begin(), output.token_ids.end());
      answer.logprobs.insert(answer.logprobs.end(), output.logprobs.begin(), output.logprobs.end());
      for (const auto& top : output.top_logprobs) {
        for (const TopLogprob& entry : top) answer.top_logprobs.push_back(entry.logprob);
      }
      answer.text += output.text;
      if (output.finished) answer.stopped = output.finish_reason == FinishReason::kStop;
    });
    EXPECT_TRUE(id.ok()) << id.status().ToString();
  }
  const EngineStats& Run() {
    EXPECT_TRUE(engine_->RunUntilIdle().ok());
    for (const int32_t used : engine_->stats().kv_blocks_used) EXPECT_EQ(used, 0);
    return engine_->stats();
  }

  ModelBundle& bundle() { return bundle_; }

 private:
  ModelBundle bundle_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;
};

inline std::vector<int32_t> DraftPrompt(int32_t length, int32_t start) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < length; ++i) prompt.push_back(3 + (start + 5 * (i % 9)) % 60);
  return prompt;
}

// Every way of sampling, prompts with much in common, several answers to one.
inline std::vector<Request> DraftRequests() {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 14; ++i) {
    Request request;
    request.prompt_ids = DraftPrompt(3 + 5 * (i % 7), i % 3);
    request.max_tokens = 20 + 4 * i;
    request.ignore_eos = i % 2 == 0;
    request.stop_ids = {7, 31};
    request.num_top_logprobs = i % 3 == 0 ? 2 : -1;
    request.n = i % 5 == 4 ? 3 : 1;
    SamplingConfig& sampling = request.sampling;
    sampling.seed = static_cast<uint64_t>(100 + i);
    if (i % 3 != 0) sampling.temperature = 0.3f + 0.1f * static_cast<float>(i);
    if (i % 4 == 1) sampling.top_k = 5;
    if (i % 4 == 2) sampling.top_p = 0.8f;
    if (i % 4 == 3) sampling.min_p = 0.1f;
    if (i % 5 == 1) sampling.repetition_penalty = 1.3f;
    if (i % 5 == 2) sampling.frequency_penalty = 0.7f, sampling.presence_penalty = 0.2f;
    if (i % 6 == 5) sampling.logit_bias = {{9, 3.0f}, {11, -2.0f}};
    requests.push_back(request);
  }
  return requests;
}

inline std::vector<std::vector<DraftAnswer>> DraftAnswers(const std::string& model, const Drafting& setup, EngineStats* stats = nullptr) {
  DraftingModel opened(model, setup);
  std::vector<Request> requests = DraftRequests();
  std::vector<std::vector<DraftAnswer>> answers(requests.size());
  // Who drafts only what pays saves the price of a try before.
  for (int i = 0; i < 3 && !setup.always; ++i) {
    std::vector<DraftAnswer> saved;
    Request request;
    request.prompt_ids = {5};
    request.max_tokens = 100;
    request.ignore_eos = true;
    opened.Submit(std::move(request), &saved);
    opened.Run();
  }
  for (size_t i = 0; i < requests.size(); ++i) opened.Submit(std::move(requests[i]), &answers[i]);
  const EngineStats& end = opened.Run();
  if (stats != nullptr) *stats = end;
  return answers;
}

// What was drafted and was wrong must not be found by others.
inline void ExpectOnlyVerifiedTokensCached(const std::string& model, const Drafting& with, const Drafting& without) {
  DraftingModel drafting(model, with);
  DraftingModel plain(model, without);
  for (int round = 0; round < 3; ++round) {
    std::vector<DraftAnswer> first, second, want;
    Request request;
    request.prompt_ids = DraftPrompt(20, 1);
    request.max_tokens = 40;
    request.ignore_eos = true;
    drafting.Submit(request, &first);
    drafting.Run();
    // The answer goes on: its blocks are in the cache.
    request.prompt_ids.insert(request.prompt_ids.end(), first[0].tokens.begin(), first[0].tokens.end());
    drafting.Submit(request, &second);
    EXPECT_GT(drafting.Run().cache_hit_tokens, round * 50);
    plain.Submit(request, &want);
    plain.Run();
    EXPECT_EQ(second, want);
  }
}

// A stop string that ends in the middle of what one step brought ends the answer there: text, tokens and log-probabilities
// are those of the answer without it, cut off. Where drafts are right by decree (setup.accept_fixed) that answer is the
// drafter's own, else it is the one without drafts.
inline void ExpectStopStringsEndInsideDrafts(const std::string& model, Drafting setup) {
  setup.max_seqs = 2;
  Drafting uncut = setup;
  if (setup.accept_fixed < 0) uncut.kind = DraftKind::kNone;
  Request request;
  request.prompt_ids = DraftPrompt(20, 1);
  request.max_tokens = 60;
  request.ignore_eos = true;
  request.num_top_logprobs = 2;
  // Of few tokens, so that they come again and are guessed from the text.
  for (int32_t id = 0; id < 5 && setup.kind == DraftKind::kNgram; ++id) request.sampling.logit_bias.push_back({20 + id, 100.0f});
  std::vector<DraftAnswer> whole;
  DraftingModel reference(model, uncut, /*with_text=*/true);
  reference.Submit(request, &whole);
  reference.Run();
  ASSERT_EQ(whole[0].tokens.size(), 60u);
  ASSERT_EQ(whole[0].logprobs.size(), 60u);
  ASSERT_EQ(whole[0].text.size(), 180u);
  DraftingModel drafting(model, setup, /*with_text=*/true);
  int num_cut = 0;
  for (size_t place = 20; place < 30; ++place) {
    // From the middle of a token to the middle of another.
    const std::string stop = whole[0].text.substr(3 * place - 20, 21);
    const size_t at = whole[0].text.find(stop);
    const size_t num_tokens = (at + stop.size() + 2) / 3;
    request.stop_strings = {stop};
    request.cache_salt = std::to_string(place);  // the MTP layer has hidden states only of what was computed
    std::vector<DraftAnswer> cut;
    drafting.Submit(request, &cut);
    drafting.Run();
    EXPECT_TRUE(cut[0].stopped);
    EXPECT_EQ(cut[0].text, whole[0].text.substr(0, at)) << stop;
    EXPECT_EQ(cut[0].tokens, std::vector(whole[0].tokens.begin(), whole[0].tokens.begin() + static_cast<ptrdiff_t>(num_tokens))) << stop;
    EXPECT_EQ(cut[0].logprobs, std::vector(whole[0].logprobs.begin(), whole[0].logprobs.begin() + static_cast<ptrdiff_t>(num_tokens))) << stop;
    EXPECT_EQ(cut[0].top_logprobs,
              std::vector(whole[0].top_logprobs.begin(), whole[0].top_logprobs.begin() + static_cast<ptrdiff_t>(2 * num_tokens)))
        << stop;
    num_cut += num_tokens < 60;
  }
  EXPECT_GT(num_cut, 8);
  const EngineStats& stats = drafting.Run();
  EXPECT_GT(stats.accepted_tokens, 20) << stats.draft_tokens << " drafted; " << whole[0].text;
}

// For benchmarks: the share that was asked for (0.7, of two drafts a row), and as many tokens as without.
inline void ExpectAFixedAcceptance(DraftingModel* opened) {
  std::vector<std::vector<DraftAnswer>> answers(8);
  for (int32_t i = 0; i < 8; ++i) {
    Request request;
    request.prompt_ids = DraftPrompt(5, i);
    request.max_tokens = 100;
    request.ignore_eos = true;
    request.sampling.frequency_penalty = 0.5f;
    opened->Submit(std::move(request), &answers[static_cast<size_t>(i)]);
  }
  const EngineStats& stats = opened->Run();
  for (const auto& answer : answers) EXPECT_EQ(answer[0].tokens.size(), 100u);
  const auto rows = static_cast<double>(stats.draft_rows);
  EXPECT_NEAR(static_cast<double>(stats.accepted_by_position[0]) / rows, 0.7, 0.07);
  EXPECT_NEAR(static_cast<double>(stats.accepted_by_position[1]) / rows, 0.49, 0.07);
}

}  // namespace cachalot
