#include "server/api/generation_params.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "formats/text.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {
namespace {

constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 4096;
constexpr size_t kMaxBadWords = 256;
constexpr size_t kMaxBadWordBytes = 1024;
constexpr size_t kMaxNameBytes = 1024;
constexpr int64_t kMaxPromptLogprobs = 20;
constexpr int64_t kMaxKvPriority = 1'000'000;
constexpr double kMinTimeoutSeconds = 1e-3;
constexpr double kMaxKvTtlSeconds = 1e9;

// A field that would change the answer, with why it is refused. (Fields that are in no list are accepted and have no
// effect, as everywhere.)
struct RefusedField {
  const char* name;
  const char* why;
};
constexpr RefusedField kRefused[] = {
    {"json_schema", "constrained output is not supported"},
    {"grammar", "constrained output is not supported"},
    {"structured_outputs", "constrained output is not supported"},
    {"guided_json", "constrained output is not supported"},
    {"guided_regex", "constrained output is not supported"},
    {"guided_choice", "constrained output is not supported"},
    {"guided_grammar", "constrained output is not supported"},
    {"use_beam_search", "beam search is not supported"},
    {"allowed_token_ids", "not supported; logit_bias takes token ids"},
    {"mirostat", "not supported"},
    {"dry_multiplier", "not supported"},
    {"xtc_probability", "not supported"},
    {"dynatemp_range", "not supported"},
    {"n_probs", "not supported; logprobs and top_logprobs are"},
    {"samplers", "not supported; the order of samplers is fixed"},
    {"top_n_sigma", "not supported"},
    {"tfs_z", "not supported"},
    {"logits_processors", "not supported"},
    {"lora", "not supported"},
    {"return_tokens_as_token_ids", "not supported"},
    {"t_max_predict_ms", "not supported; timeout is"},
};

void ReadSeed(FieldReader* fields, GenerationParams* params) {
  const int64_t seed = fields->Int("seed", -1, INT64_MIN, INT64_MAX);
  if (fields->Find("seed") != nullptr && seed != -1) {
    params->sampling.seed = static_cast<uint64_t>(seed);
    params->seeded = true;
    return;
  }
  // The seed is written to the log and to records, so that every answer can be made again. 53 bits survive any JSON reader.
  thread_local std::mt19937_64 generator{std::random_device{}()};
  params->sampling.seed = generator() >> 11;
}

void ReadBias(FieldReader* fields, const ModelFacts& facts, GenerationParams* params) {
  const ChatJson* bias = fields->Find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) {
    return fields->Fail("logit_bias", fmt::format("logit_bias is {}: must be an object of token ids and numbers", Preview(*bias)),
                        "invalid_type");
  }
  constexpr double kLargest = 100.0;
  bool other_spelling = false;  // "05" may stand beside "5"
  for (auto it = bias->begin(); it != bias->end(); ++it) {
    const std::string& key = it.key();
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= facts.vocab_size) {
      return fields->Fail("logit_bias", fmt::format("logit_bias names \"{}\": must be a token id in 0..{}", Printable(key),
                                                    facts.vocab_size - 1), "out_of_range");
    }
    const double value = it.value().is_number() ? it.value().get<double>() : NAN;
    if (!(std::abs(value) <= kLargest)) {
      return fields->Fail("logit_bias", fmt::format("logit_bias of token {} is {}: must be a number in -100..100", id,
                                                    Preview(it.value())), "out_of_range");
    }
    params->sampling.logit_bias.push_back({id, static_cast<float>(value)});
    other_spelling |= key != std::to_string(id);
  }
  if (!other_spelling) return;
  std::vector<int32_t> ids;
  for (const TokenBias& entry : params->sampling.logit_bias) ids.push_back(entry.token_id);
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice != ids.end()) fields->Fail("logit_bias", fmt::format("logit_bias names token {} twice", *twice), "invalid_value");
}

void ReadStreamOptions(FieldReader* fields, GenerationParams* params) {
  params->stream = fields->Bool("stream", false);
  const ChatJson* options = fields->Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    return fields->Fail("stream_options", fmt::format("stream_options is {}: must be an object", Preview(*options)), "invalid_type");
  }
  FieldReader inner(*options, "stream_options.");
  params->include_usage = inner.Bool("include_usage", false);
  params->continuous_usage = inner.Bool("continuous_usage_stats", false);
  if (!inner.ok()) return fields->Fail("stream_options", inner.error()->message, inner.error()->code);
  if (!params->stream) fields->Fail("stream_options", "stream_options is given without stream: true");
}

void ReadFormat(FieldReader* fields) {
  const ChatJson* format = fields->Find("response_format");
  if (format == nullptr) return;
  if (format->is_object() && format->value("/type"_json_pointer, ChatJson("text")) == "text") return;
  const ChatJson type = format->is_object() ? format->value("/type"_json_pointer, ChatJson("text")) : *format;
  fields->Fail("response_format", fmt::format("response_format is {}: only {{\"type\": \"text\"}} is supported", Preview(type)),
               "unsupported_value");
}

}  // namespace

void ReadCommonParams(FieldReader* fields, const ModelFacts& facts, GenerationParams* params) {
  params->model = fields->String("model", facts.names[0], kMaxNameBytes);
  if (fields->ok() && std::find(facts.names.begin(), facts.names.end(), params->model) == facts.names.end()) {
    fields->Fail("model", fmt::format("model \"{}\" is not served here; \"{}\" is", Printable(params->model), facts.names[0]),
                 "model_not_found");
  }
  const GenerationDefaults& own = facts.defaults;
  const auto otherwise = [](float value, float fallback) { return value >= 0 ? value : fallback; };
  SamplingConfig& sampling = params->sampling;
  sampling.temperature = static_cast<float>(fields->Number("temperature", otherwise(own.temperature, 1.0f), 0, 100));
  sampling.top_p = static_cast<float>(fields->Number("top_p", otherwise(own.top_p, 1.0f), 0, 1));
  sampling.min_p = static_cast<float>(fields->Number("min_p", otherwise(own.min_p, 0.0f), 0, 1));
  sampling.top_k = static_cast<int32_t>(std::max<int64_t>(fields->Int("top_k", std::max(own.top_k, 0), -1, INT32_MAX), 0));
  const double repetition = fields->Number("repetition_penalty", otherwise(own.repetition_penalty, 1.0f), 0.01, 100);
  sampling.repetition_penalty = static_cast<float>(fields->Number("repeat_penalty", repetition, 0.01, 100));
  sampling.presence_penalty = static_cast<float>(fields->Number("presence_penalty", 0, -2, 2));
  sampling.frequency_penalty = static_cast<float>(fields->Number("frequency_penalty", 0, -2, 2));
  ReadSeed(fields, params);
  ReadBias(fields, facts, params);
  params->stop_strings = fields->Strings("stop", kMaxStops, kMaxStopBytes);
  params->bad_words = fields->Strings("bad_words", kMaxBadWords, kMaxBadWordBytes);
  params->stop_token_ids = fields->TokenIds("stop_token_ids", kMaxStops, facts.vocab_size);
  params->ignore_eos = fields->Bool("ignore_eos", false);
  params->n = static_cast<int32_t>(fields->Int("n", 1, 1, facts.max_choices));
  params->best_of = params->n;
  ReadStreamOptions(fields, params);
  ReadFormat(fields);
  params->num_prompt_logprobs = static_cast<int32_t>(fields->Int("prompt_logprobs", -1, 0, kMaxPromptLogprobs));
  if (params->num_prompt_logprobs >= 0 && params->stream) {
    fields->Fail("prompt_logprobs", "prompt_logprobs is given with stream: true; only whole responses have them", "unsupported_value");
  }
  params->priority = static_cast<int32_t>(fields->Int("priority", 0, INT32_MIN, INT32_MAX));
  params->cache_salt = fields->String("cache_salt", "", kMaxNameBytes);
  if (fields->Find("cache_salt") != nullptr && params->cache_salt.empty()) fields->Fail("cache_salt", "cache_salt is empty");
  params->kv_priority = static_cast<int32_t>(fields->Int("kv_priority", 0, -kMaxKvPriority, kMaxKvPriority));
  params->kv_ttl_s = fields->Number("kv_ttl", 0, 0, kMaxKvTtlSeconds);
  params->kv_class = static_cast<int32_t>(fields->Int("kv_class", 0, 0, kNumReuseClasses - 1));
  if (fields->Find("timeout") != nullptr) params->timeout_s = fields->Number("timeout", 0, kMinTimeoutSeconds, kMaxKvTtlSeconds);
  params->user = fields->String("user", "", kMaxNameBytes);
  params->min_tokens = static_cast<int32_t>(fields->Int("min_tokens", 0, 0, INT32_MAX));
  params->include_stop = fields->Bool("include_stop_str_in_output", false);
  params->skip_special = fields->Bool("skip_special_tokens", true);
  params->return_token_ids = fields->Bool("return_token_ids", false);
  params->truncate_prompt = static_cast<int32_t>(fields->Int("truncate_prompt_tokens", 0, -1, INT32_MAX));
  if (fields->Find("truncate_prompt_tokens") != nullptr && params->truncate_prompt == 0) {
    fields->Fail("truncate_prompt_tokens", "truncate_prompt_tokens is 0: must be at least 1, or -1 for what fits", "out_of_range");
  }
  if (fields->Number("length_penalty", 1, -1e9, 1e9) != 1) fields->Fail("length_penalty", "beam search is not supported", "unsupported_value");
  if (fields->Number("typical_p", 1, 0, 1) != 1) fields->Fail("typical_p", "typical_p: only 1 (off) is supported", "unsupported_value");
  for (const auto& refused : kRefused) fields->Refuse(refused.name, refused.why);
}

std::optional<ApiError> CheckTextBytes(const ModelFacts& facts, size_t bytes, const char* param) {
  if (static_cast<int64_t>(bytes) <= facts.max_prompt_bytes) return std::nullopt;
  ApiError error = ErrorOfStatus(400, fmt::format("the prompt has {} bytes: the context of {} tokens has room for {} at most", bytes,
                                                  facts.max_context, facts.max_prompt_bytes));
  error.param = param;
  error.code = "context_length_exceeded";
  return error;
}

void TruncatePrompts(const ModelFacts& facts, const Tokenizer& tokenizer, GenerationParams* params) {
  if (params->truncate_prompt == 0) return;
  const int32_t fits = facts.max_context - (params->max_tokens == 0 ? 0 : 1);
  const auto keep = static_cast<size_t>(params->truncate_prompt < 0 ? fits : params->truncate_prompt);
  for (auto& prompt : params->prompts) {
    if (prompt.ids.size() <= keep) continue;
    prompt.ids.erase(prompt.ids.begin(), prompt.ids.end() - static_cast<int64_t>(keep));
    if (params->echo) prompt.text = tokenizer.Decode(prompt.ids);
  }
}

std::optional<ApiError> CheckLengths(const ModelFacts& facts, GenerationParams* params) {
  for (const auto& prompt : params->prompts) {
    if (prompt.ids.empty()) {
      ApiError error = ErrorOfStatus(400, "the prompt has no tokens");
      error.param = "prompt";
      return error;
    }
    // The last position of the context can only be generated, except where nothing is.
    const auto length = static_cast<int64_t>(prompt.ids.size());
    const int64_t limit = params->max_tokens == 0 ? facts.max_context : facts.max_context - 1;
    if (length > limit) {
      ApiError error = ErrorOfStatus(
          400, fmt::format("the prompt has {} tokens: the context of {} has room for {}", length, facts.max_context, limit));
      error.param = "prompt";
      error.code = "context_length_exceeded";
      return error;
    }
  }
  if (params->max_tokens >= 0 && params->min_tokens > params->max_tokens) {
    ApiError error = ErrorOfStatus(400, fmt::format("min_tokens is {}: must be at most max_tokens, which is {}", params->min_tokens,
                                                    params->max_tokens));
    error.param = "min_tokens";
    return error;
  }
  if (params->num_choices() > facts.max_choices) {
    ApiError error = ErrorOfStatus(400, fmt::format("{} prompts with {} choices each are more than {} sequences",
                                                    params->prompts.size(), params->best_of, facts.max_choices));
    error.param = "n";
    return error;
  }
  return std::nullopt;
}

std::optional<ApiError> TokenizeBadWords(const Tokenizer& tokenizer, GenerationParams* params) {
  for (size_t i = 0; i < params->bad_words.size(); ++i) {
    const std::string_view word = std::string_view(params->bad_words[i]).substr(std::min(params->bad_words[i].find_first_not_of(' '), params->bad_words[i].size()));
    for (const char* space : {"", " "}) {
      const auto ids = tokenizer.Encode(space + std::string(word), {.add_special = false, .parse_special = false});
      if (!ids.ok() || ids->empty()) {
        ApiError error = ErrorOfStatus(400, fmt::format("bad_words[{}] is \"{}\": {}", i, Printable(params->bad_words[i], 60),
                                                        ids.ok() ? "it has no tokens" : ids.status().message()));
        error.param = fmt::format("bad_words[{}]", i);
        return error;
      }
      auto& all = params->bad_word_ids;
      if (std::find(all.begin(), all.end(), *ids) == all.end()) all.push_back(*ids);
    }
  }
  return std::nullopt;
}

Request MakeEngineRequest(const GenerationParams& params, const ModelFacts& facts, int32_t prompt) {
  Request request;
  request.prompt_ids = params.prompts[static_cast<size_t>(prompt)].ids;
  request.sampling = params.sampling;
  request.n = params.best_of;
  const auto room = static_cast<int32_t>(facts.max_context - static_cast<int64_t>(request.prompt_ids.size()));
  request.max_tokens = params.max_tokens < 0 ? std::max(room, 1) : std::min(params.max_tokens, std::max(room, 0));
  if (!params.ignore_eos) request.stop_ids = facts.stop_ids;
  request.stop_ids.insert(request.stop_ids.end(), params.stop_token_ids.begin(), params.stop_token_ids.end());
  request.stop_strings = params.stop_strings;
  request.bad_words = params.bad_word_ids;
  request.min_tokens = std::min(params.min_tokens, request.max_tokens);
  request.include_stop = params.include_stop;
  request.skip_special = params.skip_special;
  request.num_top_logprobs = params.num_top_logprobs;
  // best_of chooses by the mean log-probability.
  if (params.best_of > params.n) request.num_top_logprobs = std::max(request.num_top_logprobs, 0);
  request.prompt_logprobs = params.num_prompt_top() >= 0 && request.prompt_ids.size() > 1;
  request.num_prompt_top_logprobs = std::max(params.num_prompt_top(), 0);
  request.reasoning = params.reasoning;
  request.call = params.call;
  request.shown_ids = params.shown_ids;
  request.priority = params.priority;
  request.tenant = params.tenant;
  request.cache_salt = params.tenant + '/' + params.cache_salt;
  request.kv_priority = params.kv_priority;
  // A time to live too short to be told is none at all: it must not turn into "no limit".
  request.kv_ttl_us = params.kv_ttl_s > 0 ? std::max<int64_t>(1, static_cast<int64_t>(params.kv_ttl_s * 1e6)) : 0;
  request.kv_class = params.kv_class;
  request.deadline_us = facts.deadline_us;
  if (params.timeout_s > 0) {
    const auto own_us = static_cast<int64_t>(params.timeout_s * 1e6);
    request.deadline_us = facts.deadline_us > 0 ? std::min(own_us, facts.deadline_us) : own_us;
  }
  return request;
}

}  // namespace cachalot
