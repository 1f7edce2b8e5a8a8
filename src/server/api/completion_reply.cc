// Replies of /v1/completions, with the older shape of log-probabilities.
#include <algorithm>
#include <set>

#include "server/api/json_text.h"
#include "server/api/reply.h"
#include "tokenizer/utf8.h"

namespace cachalot {
namespace {

int64_t NumCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

class CompletionReply final : public Reply {
 public:
  CompletionReply(std::string id, int64_t created, const GenerationParams& params, const Tokenizer& tokenizer)
      : tokenizer_(tokenizer), params_(params), logprobs_(params.num_top_logprobs >= 0) {
    head_ = fmt::format("{{\"id\":{},\"object\":\"text_completion\",\"created\":{},\"model\":{},\"system_fingerprint\":\"cachalot\",",
                        JsonString(id), created, JsonString(params.model));
  }

  bool FirstNeedsPrompt() const override { return params_.echo && logprobs_; }

  std::string FirstChunk(Choice& choice, const std::string& usage) override {
    if (!params_.echo && !params_.return_token_ids) return "";
    std::vector<AnswerToken> tokens;
    if (params_.echo) tokens = PromptTokens(choice);
    return Chunk(choice, params_.echo ? Prompt(choice).text : "", tokens, "null", usage, PromptIds(choice));
  }

  std::string DeltaChunk(Choice& choice, const ChoiceDelta& delta, const std::string& usage) override {
    if (delta.content.empty() && delta.tokens.empty() && delta.token_ids.empty()) return "";
    return Chunk(choice, delta.content, delta.tokens, "null", usage,
                 params_.return_token_ids ? "," + TokenIdsJson("token_ids", delta.token_ids) : "");
  }

  std::string LastChunk(Choice& choice, const std::string& usage) override {
    return Chunk(choice, "", {}, FinishReasonJson(choice), usage, "");
  }

  std::string UsageChunk(const std::string& usage) override { return head_ + "\"choices\":[]," + usage + "}"; }

  std::string Body(std::vector<Choice*> choices, const std::string& usage) override {
    std::string text = head_ + "\"choices\":[";
    for (Choice* choice : choices) {
      if (text.back() != '[') text += ',';
      std::vector<AnswerToken> tokens;
      if (params_.echo) tokens = PromptTokens(*choice);
      tokens.insert(tokens.end(), choice->tokens.begin(), choice->tokens.end());
      std::string more = PromptIds(*choice);
      if (params_.return_token_ids) more += "," + TokenIdsJson("token_ids", choice->token_ids);
      if (params_.num_prompt_logprobs >= 0) more += "," + PromptLogprobsJson(params_, *choice, tokenizer_);
      AppendChoice(*choice, params_.echo ? Prompt(*choice).text + choice->content : choice->content, tokens,
                   FinishReasonJson(*choice), more, &text);
    }
    return text + "]," + usage + "}";
  }

 private:
  const PromptSpec& Prompt(const Choice& choice) const { return params_.prompts[static_cast<size_t>(choice.prompt_idx)]; }

  std::string PromptIds(const Choice& choice) const {
    return params_.return_token_ids ? "," + TokenIdsJson("prompt_token_ids", Prompt(choice).ids) : "";
  }

  std::vector<AnswerToken> PromptTokens(const Choice& choice) const {
    std::vector<AnswerToken> tokens;
    if (!logprobs_) return tokens;
    const auto& ids = Prompt(choice).ids;
    for (size_t i = 0; i < ids.size(); ++i) {
      AnswerToken token;
      token.token_id = ids[i];
      token.known = i > 0 && i - 1 < choice.prompt_logprobs.size();
      if (token.known) {
        token.logprob = choice.prompt_logprobs[i - 1];
        const auto top = choice.prompt_top.begin() + static_cast<int64_t>(i - 1) * params_.num_prompt_top();
        token.top.assign(top, top + params_.num_top_logprobs);
      }
      tokens.push_back(std::move(token));
    }
    return tokens;
  }

  // A token as text; one that is no whole character as OpenAI shows it: bytes:\xe2\x80.
  std::string TokenText(int32_t id) const {
    const std::string_view bytes = tokenizer_.TokenBytes(id);
    if (IsValidUtf8(bytes)) return std::string(bytes);
    std::string text = "bytes:";
    for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    return text;
  }

  std::string Logprobs(Choice& choice, const std::vector<AnswerToken>& tokens) const {
    if (!logprobs_) return "null";
    std::string texts, values, tops, offsets;
    for (const auto& token : tokens) {
      const char* comma = texts.empty() ? "" : ",";
      const std::string text = TokenText(token.token_id);
      texts += comma + JsonString(text);
      values += comma;
      if (token.known) AppendJsonNumber(token.logprob, &values);
      else values += "null";
      tops += comma;
      AppendTop(token, text, &tops);
      offsets += fmt::format("{}{}", comma, choice.text_offset);
      // What a token hides (control tokens) has no place in the text.
      if (!tokenizer_.IsSpecial(token.token_id)) choice.text_offset += NumCharacters(tokenizer_.TokenBytes(token.token_id));
    }
    return "{\"tokens\":[" + texts + "],\"token_logprobs\":[" + values + "],\"top_logprobs\":[" + tops + "],\"text_offset\":[" + offsets +
           "]}";
  }

  // The best ones and the token itself. Two tokens may look the same: the better one stays.
  void AppendTop(const AnswerToken& token, const std::string& text, std::string* out) const {
    if (!token.known) {
      *out += "null";
      return;
    }
    std::set<std::string> seen;
    *out += '{';
    const auto add = [&](const std::string& name, float logprob) {
      if (!seen.insert(name).second) return;
      if (out->back() != '{') *out += ',';
      AppendJsonString(name, out);
      *out += ':';
      AppendJsonNumber(logprob, out);
    };
    for (const auto& top : token.top) add(TokenText(top.token_id), top.logprob);
    add(text, token.logprob);
    *out += '}';
  }

  void AppendChoice(Choice& choice, const std::string& text, const std::vector<AnswerToken>& tokens, const std::string& reason,
                    const std::string& more, std::string* out) const {
    *out += fmt::format("{{\"index\":{},\"text\":", choice.index);
    AppendJsonString(text, out);
    *out += ",\"logprobs\":" + Logprobs(choice, tokens) + ",\"finish_reason\":" + reason + more + "}";
  }

  std::string Chunk(Choice& choice, const std::string& text, const std::vector<AnswerToken>& tokens, const std::string& reason,
                    const std::string& usage, const std::string& more) const {
    std::string out = head_ + "\"choices\":[";
    AppendChoice(choice, text, tokens, reason, more, &out);
    out += ']';
    if (!usage.empty()) out += "," + usage;
    return out + "}";
  }

  const Tokenizer& tokenizer_;
  const GenerationParams params_;
  const bool logprobs_;
  std::string head_;
};

}  // namespace

std::unique_ptr<Reply> MakeCompletionReply(std::string id, int64_t created, const GenerationParams& params, const Tokenizer& tokenizer) {
  return std::make_unique<CompletionReply>(std::move(id), created, params, tokenizer);
}

}  // namespace cachalot
