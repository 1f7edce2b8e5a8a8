// What a chat or completion request asks for, checked against the model and the server's limits: nothing that a client
// got wrong passes beyond this point.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/model_bundle.h"
#include "server/api/field_reader.h"

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
};

struct PromptSpec {
  std::vector<int32_t> ids;
  std::string text;                   // for echo
};

struct GenerationParams {
  std::string model;
  std::vector<PromptSpec> prompts;
  SamplingConfig sampling;            // of choice 0; choice i has seed + i
  int32_t max_tokens = -1;            // -1: what the context leaves
  std::vector<std::string> stop_strings;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  int32_t n = 1;
  int32_t best_of = 1;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;      // usage in every chunk
  int32_t num_top_logprobs = -1;      // -1: none wanted
  bool echo = false;
  bool starts_in_reasoning = false;   // the prompt ends inside <think>
  bool split_reasoning = false;
  int32_t priority = 0;
  std::string cache_salt;
  std::string user;
  std::string tenant;                 // "": there are no keys

  int32_t num_choices() const { return static_cast<int32_t>(prompts.size()) * best_of; }
};

// The fields that both endpoints share. Reads no prompt.
void ReadCommonParams(FieldReader* fields, const ModelFacts& facts, GenerationParams* params);
// Before a prompt is tokenised: whether its text can fit at all.
std::optional<ApiError> CheckTextBytes(const ModelFacts& facts, size_t bytes, const char* param);
// After prompts and max_tokens are known: lengths against the context.
std::optional<ApiError> CheckLengths(const ModelFacts& facts, GenerationParams* params);
// The engine's request for the best_of choices of prompt `prompt`. What tenants have cached stays theirs.
Request MakeEngineRequest(const GenerationParams& params, const ModelFacts& facts, int32_t prompt);

}  // namespace cachalot
