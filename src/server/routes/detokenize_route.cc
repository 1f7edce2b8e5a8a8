// POST /detokenize: {"tokens": […]} to text.
#include <nlohmann/json.hpp>

#include "server/api/field_reader.h"
#include "server/api/json_text.h"
#include "server/routes/routes.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {

void DetokenizeRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange) {
  constexpr size_t kMaxTokens = 1 << 24;
  ChatJson body;
  if (const auto error = ParseBody(exchange->request().body, &body)) return exchange->Respond(ErrorResponse(*error));
  FieldReader fields(body);
  if (fields.Find("tokens") == nullptr) fields.Fail("tokens", "tokens is missing: must be a list of token ids", "missing_field");
  const std::vector<int32_t> ids = fields.TokenIds("tokens", kMaxTokens, context->facts.vocab_size);
  const bool skip_special = fields.Bool("skip_special_tokens", false);
  if (!fields.ok()) return exchange->Respond(ErrorResponse(*fields.error()));
  const std::string text = JsonString(context->bundle->tokenizer->Decode(ids, skip_special));
  HttpResponse response;
  response.body = "{\"prompt\":" + text + ",\"content\":" + text + "}";
  exchange->Respond(std::move(response));
}

}  // namespace cachalot
