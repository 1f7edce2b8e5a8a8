// Replies of /v1/chat/completions.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/api/json_text.h"
#include "server/api/reply.h"

namespace cachalot {
namespace {

class ChatReply final : public Reply {
 public:
  ChatReply(std::string id, int64_t created, const GenerationParams& params, const Tokenizer& tokenizer, ReasoningFields fields)
      : tokenizer_(tokenizer), params_(params), fields_(fields), logprobs_(params.num_top_logprobs >= 0) {
    // Everything up to the choices is the same in each chunk.
    const auto head = [&](const char* object) {
      return fmt::format("{{\"id\":{},\"object\":\"{}\",\"created\":{},\"model\":{},\"system_fingerprint\":\"cachalot\",", JsonString(id),
                         object, created, JsonString(params.model));
    };
    chunk_head_ = head("chat.completion.chunk");
    body_head_ = head("chat.completion");
  }

  std::string FirstChunk(Choice& choice, const std::string& usage) override {
    std::string text = Chunk(choice, "{\"role\":\"assistant\",\"content\":\"\"}", "null", "null", usage);
    if (params_.return_token_ids) {
      text.back() = ',';
      text += TokenIdsJson("prompt_token_ids", params_.prompts[0].ids) + "}";
    }
    return text;
  }

  std::string DeltaChunk(Choice& choice, const ChoiceDelta& delta, const std::string& usage) override {
    if (delta.content.empty() && delta.reasoning.empty() && delta.calls.empty() && delta.tokens.empty() && delta.token_ids.empty()) return "";
    std::string fields;
    AppendReasoning(delta.reasoning, &fields);
    if (!delta.content.empty() || (fields.empty() && delta.calls.empty())) {
      fields += fields.empty() ? "\"content\":" : ",\"content\":";
      AppendJsonString(delta.content, &fields);
    }
    AppendCallDeltas(delta.calls, &fields);
    return Chunk(choice, "{" + fields + "}", Logprobs(delta.tokens), "null", usage,
                 params_.return_token_ids ? "," + TokenIdsJson("token_ids", delta.token_ids) : "");
  }

  std::string LastChunk(Choice& choice, const std::string& usage) override {
    return Chunk(choice, "{}", "null", FinishReasonJson(choice), usage);
  }

  std::string UsageChunk(const std::string& usage) override { return chunk_head_ + "\"choices\":[]," + usage + "}"; }

  std::string Body(std::vector<Choice*> choices, const std::string& usage) override {
    std::string text = body_head_ + "\"choices\":[";
    for (const Choice* choice : choices) {
      if (text.back() != '[') text += ',';
      text += fmt::format("{{\"index\":{},\"message\":{{\"role\":\"assistant\",\"content\":", choice->index);
      if (choice->content.empty() && !choice->calls.empty()) text += "null";
      else AppendJsonString(choice->content, &text);
      text += ",\"refusal\":null";
      std::string reasoning;
      AppendReasoning(choice->reasoning, &reasoning);
      if (!reasoning.empty()) text += "," + reasoning;
      AppendCalls(choice->calls, &text);
      text += "},\"logprobs\":" + Logprobs(choice->tokens) + ",\"finish_reason\":" + FinishReasonJson(*choice);
      if (params_.return_token_ids) text += "," + TokenIdsJson("token_ids", choice->token_ids);
      text += '}';
    }
    text += "]," + usage;
    if (params_.return_token_ids) text += "," + TokenIdsJson("prompt_token_ids", params_.prompts[0].ids);
    if (params_.num_prompt_logprobs >= 0) text += "," + PromptLogprobsJson(params_, *choices[0], tokenizer_);
    return text + "}";
  }

 private:
  static void AppendCall(const ToolCall& call, std::string* out) {
    *out += "\"id\":" + JsonString(call.id) + ",\"type\":\"function\",\"function\":{\"name\":" + JsonString(call.name) +
            ",\"arguments\":" + JsonString(call.arguments) + "}}";
  }
  static void AppendCalls(const std::vector<ToolCall>& calls, std::string* out) {
    if (calls.empty()) return;
    *out += ",\"tool_calls\":[";
    for (size_t i = 0; i < calls.size(); ++i) {
      *out += i == 0 ? "{" : ",{";
      AppendCall(calls[i], out);
    }
    *out += ']';
  }
  static void AppendCallDeltas(const std::vector<ToolCallDelta>& deltas, std::string* out) {
    if (deltas.empty()) return;
    *out += out->empty() ? "\"tool_calls\":[" : ",\"tool_calls\":[";
    for (const ToolCallDelta& delta : deltas) {
      if (out->back() != '[') *out += ',';
      *out += fmt::format("{{\"index\":{},", delta.index);
      if (!delta.part.name.empty()) AppendCall(delta.part, out);
      else *out += "\"function\":{\"arguments\":" + JsonString(delta.part.arguments) + "}}";
    }
    *out += ']';
  }

  void AppendReasoning(const std::string& reasoning, std::string* out) const {
    if (reasoning.empty()) return;
    const std::string value = JsonString(reasoning);
    if (fields_ != ReasoningFields::kReasoning) *out += "\"reasoning_content\":" + value;
    if (fields_ != ReasoningFields::kReasoningContent) *out += (out->empty() ? "\"reasoning\":" : ",\"reasoning\":") + value;
  }

  void AppendToken(int32_t id, float logprob, std::string* out) const {
    const std::string_view bytes = tokenizer_.TokenBytes(id);
    *out += "{\"token\":";
    AppendJsonString(bytes, out);
    *out += ",\"logprob\":";
    AppendJsonNumber(logprob, out);
    *out += ",\"bytes\":";
    AppendJsonBytes(bytes, out);
  }

  std::string Logprobs(const std::vector<AnswerToken>& tokens) const {
    if (!logprobs_) return "null";
    std::string text = "{\"content\":[";
    for (const auto& token : tokens) {
      if (text.back() != '[') text += ',';
      AppendToken(token.token_id, token.logprob, &text);
      text += ",\"top_logprobs\":[";
      for (const auto& top : token.top) {
        if (text.back() != '[') text += ',';
        AppendToken(top.token_id, top.logprob, &text);
        text += '}';
      }
      text += "]}";
    }
    return text + "],\"refusal\":null}";
  }

  std::string Chunk(const Choice& choice, const std::string& delta, const std::string& logprobs, const std::string& reason,
                    const std::string& usage, const std::string& more = "") const {
    std::string text = chunk_head_ + fmt::format("\"choices\":[{{\"index\":{},\"delta\":", choice.index) + delta;
    text += ",\"logprobs\":" + logprobs + ",\"finish_reason\":" + reason + more + "}]";
    if (!usage.empty()) text += "," + usage;
    return text + "}";
  }

  const Tokenizer& tokenizer_;
  const GenerationParams params_;
  const ReasoningFields fields_;
  const bool logprobs_;
  std::string chunk_head_, body_head_;
};

}  // namespace

namespace {

bool IsWhole(const ToolCall& call) {
  if (!call.ended) return false;
  const Result<ChatJson> arguments = ParseChatJson(call.arguments);
  return arguments.ok() && arguments->is_object();
}

}  // namespace

std::string UsageJson(const Usage& usage) {
  return fmt::format(
      "\"usage\":{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{},\"prompt_tokens_details\":{{\"cached_tokens\":{}}},"
      "\"completion_tokens_details\":{{\"reasoning_tokens\":{}}}}}",
      usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens, usage.cached_tokens,
      usage.reasoning_tokens);
}

std::string FinishReasonJson(const Choice& choice) {
  if (!choice.finished) return "null";
  if (choice.finish_reason == FinishReason::kLength) return "\"length\"";
  return !choice.calls.empty() && std::all_of(choice.calls.begin(), choice.calls.end(), IsWhole) ? "\"tool_calls\"" : "\"stop\"";
}

std::unique_ptr<Reply> MakeChatReply(std::string id, int64_t created, const GenerationParams& params, const Tokenizer& tokenizer,
                                     ReasoningFields fields) {
  return std::make_unique<ChatReply>(std::move(id), created, params, tokenizer, fields);
}

}  // namespace cachalot
