// What vLLM's replies have beside OpenAI's: token ids, and the log-probabilities of a prompt.
#include "server/api/json_text.h"
#include "server/api/reply.h"

namespace cachalot {
namespace {

void AppendEntry(int32_t id, float logprob, int32_t rank, const Tokenizer& tokenizer, std::string* out) {
  if (out->back() != '{') *out += ',';
  *out += fmt::format("\"{}\":{{\"logprob\":", id);
  AppendJsonNumber(logprob, out);
  *out += rank > 0 ? fmt::format(",\"rank\":{},\"decoded_token\":", rank) : ",\"rank\":null,\"decoded_token\":";
  AppendJsonString(tokenizer.TokenBytes(id), out);
  *out += '}';
}

}  // namespace

std::string TokenIdsJson(const char* name, std::span<const int32_t> ids) {
  return fmt::format("\"{}\":[{}]", name, fmt::join(ids, ","));
}

std::string PromptLogprobsJson(const GenerationParams& params, const Choice& choice, const Tokenizer& tokenizer) {
  const std::vector<int32_t>& ids = params.prompts[static_cast<size_t>(choice.prompt_idx)].ids;
  const auto stride = static_cast<size_t>(params.num_prompt_top());
  const auto num_top = static_cast<size_t>(params.num_prompt_logprobs);
  std::string out = "\"prompt_logprobs\":[null";
  for (size_t i = 1; i < ids.size() && i <= choice.prompt_logprobs.size(); ++i) {
    out += ",{";
    bool among_best = false;
    for (size_t rank = 0; rank < num_top; ++rank) {
      const TopLogprob& top = choice.prompt_top[(i - 1) * stride + rank];
      if (top.token_id < 0) break;  // a vocabulary of fewer
      among_best |= top.token_id == ids[i];
      AppendEntry(top.token_id, top.logprob, static_cast<int32_t>(rank) + 1, tokenizer, &out);
    }
    if (!among_best) AppendEntry(ids[i], choice.prompt_logprobs[i - 1], 0, tokenizer, &out);
    out += '}';
  }
  return out + ']';
}

}  // namespace cachalot
