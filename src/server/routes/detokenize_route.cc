// POST /detokenize: {"tokens": […]} to text.
#include <nlohmann/json.hpp>

#include "server/api/field_reader.h"
#include "server/api/json_text.h"
#include "server/routes/routes.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {

namespace {

HttpResponse Answer(const ServerContext& context, const std::string& request) {
  constexpr size_t kMaxTokens = 1 << 24;
  ChatJson body;
  if (const auto error = ParseBody(request, &body)) return ErrorResponse(*error);
  FieldReader fields(body);
  if (fields.Find("tokens") == nullptr) fields.Fail("tokens", "tokens is missing: must be a list of token ids", "missing_field");
  const std::vector<int32_t> ids = fields.TokenIds("tokens", kMaxTokens, context.facts.vocab_size);
  const bool skip_special = fields.Bool("skip_special_tokens", false);
  if (!fields.ok()) return ErrorResponse(*fields.error());
  const std::string text = JsonString(context.bundle->tokenizer->Decode(ids, skip_special));
  HttpResponse response;
  response.body = "{\"prompt\":" + text + ",\"content\":" + text + "}";
  return response;
}

}  // namespace

void DetokenizeRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange) {
  RespondWith(context, exchange, Answer);
}

}  // namespace cachalot
