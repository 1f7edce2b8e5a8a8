#include "server/api/completion_request.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tokenizer/tokenizer.h"

namespace cachalot {
namespace {

constexpr int64_t kDefaultMaxTokens = 16;  // OpenAI's
constexpr int64_t kMaxTopLogprobs = 20;
constexpr size_t kMaxPromptIds = 1 << 24;

std::optional<ApiError> Wrong(std::string message, std::string code) {
  ApiError error;
  error.param = "prompt";
  error.message = std::move(message);
  error.code = std::move(code);
  return error;
}

std::optional<ApiError> AddText(const std::string& text, bool add_special, const ModelFacts& facts, const Tokenizer& tokenizer,
                                GenerationParams* params) {
  if (auto error = CheckTextBytes(facts, text.size(), "prompt")) return error;
  PromptSpec prompt;
  prompt.text = text;
  Result<std::vector<int32_t>> ids = tokenizer.Encode(text, {.add_special = add_special});
  if (!ids.ok()) return ErrorOf(ids.status());
  prompt.ids = std::move(*ids);
  params->prompts.push_back(std::move(prompt));
  return std::nullopt;
}

std::optional<ApiError> AddIds(const ChatJson& list, const std::string& place, const ModelFacts& facts, const Tokenizer& tokenizer,
                               GenerationParams* params) {
  const ChatJson object = ChatJson{{place, list}};
  FieldReader reader(object);
  PromptSpec prompt;
  // What will be cut may be longer.
  const size_t most = params->truncate_prompt != 0 ? kMaxPromptIds : static_cast<size_t>(facts.max_context);
  prompt.ids = reader.TokenIds(place, most, facts.vocab_size);
  if (!reader.ok()) {
    if (reader.error()->code == "too_long") {
      return Wrong(fmt::format("{} has {} tokens: the context has {}", place, list.size(), facts.max_context), "context_length_exceeded");
    }
    return Wrong(reader.error()->message, reader.error()->code);
  }
  prompt.text = tokenizer.Decode(prompt.ids);
  params->prompts.push_back(std::move(prompt));
  return std::nullopt;
}

// A text, a list of texts, a list of tokens, or a list of lists of tokens.
std::optional<ApiError> TakePrompts(const ChatJson& body, const ModelBundle& bundle, const ModelFacts& facts, bool add_special,
                                    GenerationParams* params) {
  const auto found = body.find("prompt");
  if (found == body.end() || found->is_null()) return Wrong("prompt is missing", "missing_field");
  const ChatJson& prompt = *found;
  const Tokenizer& tokenizer = *bundle.tokenizer;
  if (prompt.is_string()) return AddText(prompt.get_ref<const std::string&>(), add_special, facts, tokenizer, params);
  if (!prompt.is_array() || prompt.empty()) {
    return Wrong(fmt::format("prompt is {}: must be a string, a list of strings, a list of token ids, or a list of such lists",
                             Preview(prompt)), "invalid_type");
  }
  if (prompt[0].is_number()) return AddIds(prompt, "prompt", facts, tokenizer, params);
  if (prompt.size() > static_cast<size_t>(facts.max_choices)) {
    return Wrong(fmt::format("prompt has {} entries: at most {} are allowed", prompt.size(), facts.max_choices), "too_long");
  }
  for (size_t i = 0; i < prompt.size(); ++i) {
    const std::string place = fmt::format("prompt[{}]", i);
    std::optional<ApiError> error;
    if (prompt[i].is_string()) {
      error = AddText(prompt[i].get_ref<const std::string&>(), add_special, facts, tokenizer, params);
    } else if (prompt[i].is_array()) {
      error = AddIds(prompt[i], place, facts, tokenizer, params);
    } else {
      error = Wrong(fmt::format("{} is {}: must be a string or a list of token ids", place, Preview(prompt[i])), "invalid_type");
    }
    if (error) return error;
  }
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> ParseCompletionRequest(const ChatJson& body, const ModelBundle& bundle, const ModelFacts& facts,
                                               GenerationParams* params) {
  FieldReader fields(body);
  ReadCommonParams(&fields, facts, params);
  const int64_t max_tokens = fields.Int("max_tokens", kDefaultMaxTokens, 0, INT32_MAX);
  params->max_tokens = static_cast<int32_t>(fields.Int("max_completion_tokens", max_tokens, 0, INT32_MAX));
  if (const ChatJson* logprobs = fields.Find("logprobs"); logprobs != nullptr && *logprobs != false) {
    params->num_top_logprobs = static_cast<int32_t>(fields.Int("logprobs", 0, 0, kMaxTopLogprobs));
  }
  params->echo = fields.Bool("echo", false);
  params->best_of = static_cast<int32_t>(fields.Int("best_of", params->n, 1, facts.max_choices));
  if (params->best_of < params->n) {
    fields.Fail("best_of", fmt::format("best_of is {}: must be at least n, which is {}", params->best_of, params->n), "out_of_range");
  }
  if (params->best_of > params->n && params->stream) {
    fields.Fail("best_of", fmt::format("best_of is {} and n is {}: a stream cannot choose", params->best_of, params->n), "unsupported_value");
  }
  fields.Refuse("suffix", "insertion is not supported");
  const bool add_special = fields.Bool("add_special_tokens", true);
  if (!fields.ok()) {
    ApiError error = *fields.error();
    if (error.code == "model_not_found") error.status = 404;
    return error;
  }
  if (auto error = TakePrompts(body, bundle, facts, add_special, params)) return error;
  if (auto error = TokenizeBadWords(*bundle.tokenizer, params)) return error;
  TruncatePrompts(facts, *bundle.tokenizer, params);
  return CheckLengths(facts, params);
}

}  // namespace cachalot
