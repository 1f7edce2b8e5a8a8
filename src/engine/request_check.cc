#include "engine/request_check.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace cachalot {
namespace {

constexpr int32_t kMaxChoices = 1024;
constexpr size_t kMaxBadWords = 1000;  // each drawn token is compared with all of them
constexpr int32_t kMaxPromptTopLogprobs = 1024;  // a step holds them for every position

Status CheckNumber(const char* name, float value, float min, float max) {
  if (std::isfinite(value) && value >= min && value <= max) return Status::Ok();
  return InvalidArgument("{} is {}: must be in {}..{}", name, value, min, max);
}

Status CheckSampling(const SamplingConfig& sampling, int32_t vocab_size) {
  RETURN_IF_ERROR(CheckNumber("temperature", sampling.temperature, 0.0f, 1000.0f));
  RETURN_IF_ERROR(CheckNumber("top_p", sampling.top_p, 0.0f, 1.0f));
  RETURN_IF_ERROR(CheckNumber("min_p", sampling.min_p, 0.0f, 1.0f));
  RETURN_IF_ERROR(CheckNumber("presence_penalty", sampling.presence_penalty, -1000.0f, 1000.0f));
  RETURN_IF_ERROR(CheckNumber("frequency_penalty", sampling.frequency_penalty, -1000.0f, 1000.0f));
  RETURN_IF_ERROR(CheckNumber("repetition_penalty", sampling.repetition_penalty, 0.001f, 1000.0f));
  if (sampling.top_k < 0) return InvalidArgument("top_k is {}: must be at least 0 (0: off)", sampling.top_k);
  for (const TokenBias& bias : sampling.logit_bias) {
    if (bias.token_id < 0 || bias.token_id >= vocab_size) {
      return InvalidArgument("logit_bias names token {}: the vocabulary has {}", bias.token_id, vocab_size);
    }
    if (!std::isfinite(bias.bias))
      return InvalidArgument("logit_bias of token {} is {}", bias.token_id, bias.bias);
  }
  // Devices add the entries side by side, and a sum of two for one token would depend on who comes first.
  std::vector<int32_t> biased;
  for (const TokenBias& bias : sampling.logit_bias) biased.push_back(bias.token_id);
  std::sort(biased.begin(), biased.end());
  const auto twice = std::adjacent_find(biased.begin(), biased.end());
  if (twice != biased.end()) return InvalidArgument("logit_bias names token {} twice", *twice);
  return Status::Ok();
}

Status CheckReasoning(const Request& request, int32_t vocab_size) {
  const ReasoningLimits& limits = request.reasoning;
  for (const auto* ids : {&limits.close_ids, &limits.then_ids}) {
    for (const int32_t id : *ids) {
      if (id < 0 || id >= vocab_size)
        return InvalidArgument("reasoning forces token {}: the vocabulary has {}", id, vocab_size);
    }
  }
  const bool forces = (limits.budget >= 0 && !limits.close_ids.empty()) || !limits.then_ids.empty() || request.call.on;
  if (forces && (request.all_logits || request.mtp_logits))
    return InvalidArgument("tokens cannot be forced where the logits of every position are wanted");
  return Status::Ok();
}

Status CheckBadWords(const Request& request, int32_t vocab_size) {
  if (request.bad_words.size() > kMaxBadWords) {
    return InvalidArgument("bad_words has {} token sequences: at most {} are allowed", request.bad_words.size(), kMaxBadWords);
  }
  for (size_t i = 0; i < request.bad_words.size(); ++i) {
    const std::vector<int32_t>& word = request.bad_words[i];
    if (word.empty()) return InvalidArgument("bad word {} has no tokens", i);
    for (const int32_t id : word) {
      if (id < 0 || id >= vocab_size) return InvalidArgument("bad word {} has token {}: the vocabulary has {}", i, id, vocab_size);
    }
    if (word.size() > 1 && (request.all_logits || request.mtp_logits)) {
      return InvalidArgument("tokens cannot be drawn again where the logits of every position are wanted (bad word {})", i);
    }
  }
  return Status::Ok();
}

// Text is emitted up to the beginning of a possible match, which must not be inside a character.
bool BeginsInsideCharacter(const std::string& text) {
  return (static_cast<unsigned char>(text[0]) & 0xC0) == 0x80;
}

}  // namespace

bool CanLeaveText(const Request& request) {
  return request.stop_strings.empty() && request.reasoning.budget < 0 && request.reasoning.then_ids.empty() && !request.call.on;
}

Status CheckRequest(const Request& request, const ExecutorInfo& info, bool has_tokenizer) {
  const int32_t vocab_size = info.vocab_size;
  if (request.n < 1 || request.n > kMaxChoices) {
    return InvalidArgument("n is {}: must be in 1..{}", request.n, kMaxChoices);
  }
  if (!std::isfinite(request.tenant_weight) || request.tenant_weight < 1e-6 || request.tenant_weight > 1e6) {
    return InvalidArgument("tenant_weight is {}: must be in 1e-6..1e6", request.tenant_weight);
  }
  if (request.kv_ttl_us < 0) return InvalidArgument("kv_ttl_us is {}: must be at least 0 (0: no limit)", request.kv_ttl_us);
  if (request.kv_class < 0 || request.kv_class >= kNumReuseClasses) {
    return InvalidArgument("kv_class is {}: must be in 0..{}", request.kv_class, kNumReuseClasses - 1);
  }
  if (request.deadline_us < 0)
    return InvalidArgument("deadline_us is {}: must be at least 0 (0: none)", request.deadline_us);
  for (size_t i = 0; i < request.prompt_ids.size(); ++i) {
    const int32_t token = request.prompt_ids[i];
    if (token < 0 || token >= vocab_size) {
      return InvalidArgument("prompt token {} is {}: the vocabulary has {}", i, token, vocab_size);
    }
  }
  RETURN_IF_ERROR(CheckSampling(request.sampling, vocab_size));
  RETURN_IF_ERROR(CheckReasoning(request, vocab_size));
  RETURN_IF_ERROR(CheckBadWords(request, vocab_size));
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens) {
    return InvalidArgument("min_tokens is {}: must be in 0..max_tokens, which is {}", request.min_tokens, request.max_tokens);
  }
  const size_t num_suppressed = request.min_tokens > 0 && !request.ignore_eos ? request.stop_ids.size() : 0;
  const size_t num_bias = request.sampling.logit_bias.size() + num_suppressed + request.bad_words.size();
  if (info.max_logit_bias > 0 && num_bias > static_cast<size_t>(info.max_logit_bias)) {
    return InvalidArgument("logit_bias, bad_words and the stop ids that min_tokens forbids have {} entries, the device takes at most {}",
                           num_bias, info.max_logit_bias);
  }
  if (info.max_top_logprobs > 0 && request.num_top_logprobs > info.max_top_logprobs) {
    return InvalidArgument("num_top_logprobs is {}, the device gives at most {}", request.num_top_logprobs, info.max_top_logprobs);
  }
  if (request.num_top_logprobs < -1 || request.num_top_logprobs > vocab_size) {
    return InvalidArgument("num_top_logprobs is {}: must be in -1..{}", request.num_top_logprobs, vocab_size);
  }
  if (request.num_prompt_top_logprobs < 0 || request.num_prompt_top_logprobs > std::min(vocab_size, kMaxPromptTopLogprobs)) {
    return InvalidArgument("num_prompt_top_logprobs is {}: must be in 0..{}", request.num_prompt_top_logprobs,
                           std::min(vocab_size, kMaxPromptTopLogprobs));
  }
  if (!request.text && !CanLeaveText(request)) {
    return InvalidArgument("an answer without text cannot end at stop strings, limit its reasoning or be a call");
  }
  if (!request.stop_strings.empty() && !has_tokenizer) {
    return InvalidArgument("stop strings need a tokenizer, and this model has none");
  }
  for (size_t i = 0; i < request.stop_strings.size(); ++i) {
    if (request.stop_strings[i].empty()) return InvalidArgument("stop string {} is empty", i);
    if (BeginsInsideCharacter(request.stop_strings[i])) {
      return InvalidArgument("stop string {} begins inside a UTF-8 character", i);
    }
  }
  return Status::Ok();
}

}  // namespace cachalot
