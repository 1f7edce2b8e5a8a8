// What a chat or completion request asks for, checked against the model and the server's limits: nothing that a client
// got wrong passes beyond this point.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/answer_setup.h"
#include "engine/model_bundle.h"
#include "server/api/field_reader.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {

// What requests are checked against.
struct ModelFacts {
  std::vector<std::string> names;     // the first is the one that responses show
  int32_t vocab_size = 0;
  int32_t max_context = 0;
  int64_t max_prompt_bytes = INT64_MAX;  // a longer text has surely more tokens than the context; it is not even tokenised
  int32_t max_choices = 128;          // sequences of one request
  GenerationDefaults defaults;
  std::vector<int32_t> stop_ids;      // of the tokenizer
  int64_t deadline_us = 0;            // of every request; 0: none
  bool split_reasoning = true;        // unless a request says no
  int32_t reasoning_budget = -1;      // of requests that name none; -1: any number
};

struct PromptSpec {
  std::vector<int32_t> ids;
  std::string text;                   // for echo
};

struct GenerationParams {
  std::string model;
  std::vector<PromptSpec> prompts;
  SamplingConfig sampling;            // of choice 0; choice i has seed + i
  bool seeded = false;                // the request brought the seed
  int32_t max_tokens = -1;            // -1: what the context leaves
  std::vector<std::string> stop_strings;
  std::vector<int32_t> stop_token_ids;
  std::vector<std::string> bad_words;
  std::vector<std::vector<int32_t>> bad_word_ids;  // how the answer would write them
  bool ignore_eos = false;
  int32_t min_tokens = 0;             // before so many nothing but a limit ends the answer
  bool include_stop = false;          // what stopped the answer is part of its text
  bool skip_special = true;
  bool return_token_ids = false;
  int32_t truncate_prompt = 0;        // so many of the prompt's last tokens are kept; -1: what fits; 0: all
  int32_t n = 1;
  int32_t best_of = 1;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;      // usage in every chunk
  int32_t num_top_logprobs = -1;      // -1: none wanted
  int32_t num_prompt_logprobs = -1;   // vLLM's prompt_logprobs: so many best for each token of the prompt; -1: none wanted
  bool echo = false;
  AnswerFormat format = {.split_reasoning = false};  // how the answer comes apart
  bool parallel_tool_calls = true;    // false: the answer ends with its first call
  bool forces_call = false;           // it must be one
  std::string forced_text;            // what the answer begins with; its tokens are the prompt's last
  ReasoningLimits reasoning;
  CallRule call;                      // what the answer must be
  std::vector<int32_t> shown_ids;     // special tokens that the answer's text needs
  int32_t priority = 0;
  std::string cache_salt;
  int32_t kv_priority = 0;            // what it leaves in the prefix cache: see Request
  double kv_ttl_s = 0;
  int32_t kv_class = 0;
  double timeout_s = 0;               // for the whole answer; 0: as the server says
  std::string user;
  std::string tenant;                 // "": there are no keys

  // The best tokens that the engine gives for each position of the prompt; -1: no log-probabilities of it are wanted.
  int32_t num_prompt_top() const { return std::max(num_prompt_logprobs, echo ? num_top_logprobs : -1); }
  int32_t num_choices() const { return static_cast<int32_t>(prompts.size()) * best_of; }
};

// The fields that both endpoints share. Reads no prompt.
void ReadCommonParams(FieldReader* fields, const ModelFacts& facts, GenerationParams* params);
// Before a prompt is tokenised: whether its text can fit at all.
std::optional<ApiError> CheckTextBytes(const ModelFacts& facts, size_t bytes, const char* param);
// What truncate_prompt_tokens leaves of each prompt.
void TruncatePrompts(const ModelFacts& facts, const Tokenizer& tokenizer, GenerationParams* params);
// bad_word_ids: each word as it stands at the beginning, and behind a space.
std::optional<ApiError> TokenizeBadWords(const Tokenizer& tokenizer, GenerationParams* params);
// After prompts and max_tokens are known: lengths against the context.
std::optional<ApiError> CheckLengths(const ModelFacts& facts, GenerationParams* params);
// The engine's request for the best_of choices of prompt `prompt`. What tenants have cached stays theirs.
Request MakeEngineRequest(const GenerationParams& params, const ModelFacts& facts, int32_t prompt);

}  // namespace cachalot
