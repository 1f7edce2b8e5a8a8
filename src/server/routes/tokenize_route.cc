// POST /tokenize: {"prompt" or "content": text} or {"messages": […]} to token ids.
#include <nlohmann/json.hpp>

#include "server/api/chat_request.h"
#include "server/api/json_text.h"
#include "server/routes/routes.h"

namespace cachalot {
namespace {

std::optional<ApiError> Tokenize(const ServerContext& context, const ChatJson& body, std::vector<int32_t>* ids, bool* with_strings) {
  FieldReader fields(body);
  constexpr size_t kMaxTextBytes = size_t{1} << 30;
  *with_strings = fields.Bool("return_token_strs", false);
  const bool with_pieces = fields.Bool("with_pieces", false);
  *with_strings = *with_strings || with_pieces;
  if (fields.Find("messages") != nullptr) {
    if (!fields.ok()) return fields.error();
    RenderedPrompt prompt;
    if (auto error = RenderChat(body, *context.bundle, &prompt)) return error;
    return EncodeChat(prompt, *context.bundle, ids);
  }
  const char* name = fields.Find("prompt") != nullptr ? "prompt" : "content";
  if (fields.Find(name) == nullptr) fields.Fail("prompt", "prompt is missing: a text (or messages: a conversation)", "missing_field");
  const std::string text = fields.String(name, "", kMaxTextBytes);
  // Both names are in use: vLLM's and llama.cpp's.
  const bool add_special = fields.Bool("add_special", fields.Bool("add_special_tokens", true));
  const bool parse_special = fields.Bool("parse_special", true);
  if (!fields.ok()) return fields.error();
  Result<std::vector<int32_t>> encoded = context.bundle->tokenizer->Encode(text, {.add_special = add_special, .parse_special = parse_special});
  if (!encoded.ok()) return ErrorOf(encoded.status());
  *ids = std::move(*encoded);
  return std::nullopt;
}

HttpResponse Answer(const ServerContext& context, const std::string& text) {
  ChatJson body;
  std::vector<int32_t> ids;
  bool with_strings = false;
  std::optional<ApiError> error = ParseBody(text, &body);
  if (!error) error = Tokenize(context, body, &ids, &with_strings);
  if (error) return ErrorResponse(*error);
  HttpResponse response;
  response.body = fmt::format("{{\"count\":{},\"max_model_len\":{},\"tokens\":[{}]", ids.size(), context.facts.max_context,
                              fmt::join(ids, ","));
  if (with_strings) {
    response.body += ",\"token_strs\":[";
    for (const int32_t id : ids) {
      if (response.body.back() != '[') response.body += ',';
      AppendJsonString(context.bundle->tokenizer->TokenBytes(id), &response.body);
    }
    response.body += ']';
  }
  response.body += '}';
  return response;
}

}  // namespace

void TokenizeRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange) {
  RespondWith(context, exchange, Answer);
}

}  // namespace cachalot
