// The flags that say how tokens are drawn and when the answer ends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/flag_set.h"
#include "engine/engine.h"
#include "engine/model_bundle.h"

namespace cachalot {

// Defaults where neither the command line nor the model's files say anything: llama.cpp's.
struct SamplingFlags {
  float temperature = 0.8f;
  int32_t top_k = 40;
  float top_p = 0.95f;
  float min_p = 0.05f;
  float repeat_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int64_t seed = -1;
  int32_t max_tokens = -1;
  std::vector<std::string> logit_bias;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  int32_t logprobs = -1;

  void Declare(FlagSet* flags);
  // After FlagSet::Parse: reads logit biases and stop texts, draws a random seed.
  Status Resolve();
  // What was not given comes from the model.
  void TakeDefaults(const FlagSet& flags, const GenerationDefaults& model);

  // Sampling, stops and log-probabilities; the prompt and max_tokens are the caller's.
  Request MakeRequest() const;

 private:
  std::vector<TokenBias> biases_;
};

// "15043+1.5", "15043-2", "15043=-100"
Result<TokenBias> ParseLogitBias(const std::string& text);

}  // namespace cachalot
