// GET /v1/models, GET /v1/models/{id}
#include <algorithm>

#include "formats/text.h"
#include "server/api/api_error.h"
#include "server/api/json_text.h"
#include "server/routes/routes.h"

namespace cachalot {
namespace {

std::string ModelJson(const ServerContext& context, const std::string& name) {
  return fmt::format(
      "{{\"id\":{},\"object\":\"model\",\"created\":{},\"owned_by\":\"cachalot\",\"root\":{},\"parent\":null,\"max_model_len\":{}}}",
      JsonString(name), context.start_unix, JsonString(context.facts.names[0]), context.facts.max_context);
}

}  // namespace

void ListModelsRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  response.body = "{\"object\":\"list\",\"data\":[";
  for (const auto& name : context->facts.names) {
    if (response.body.back() != '[') response.body += ',';
    response.body += ModelJson(*context, name);
  }
  response.body += "]}";
  exchange->Respond(std::move(response));
}

void GetModelRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange) {
  const std::string name = exchange->request().path.substr(std::string_view("/v1/models/").size());
  const auto& names = context->facts.names;
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    ApiError error = ErrorOfStatus(404, fmt::format("model \"{}\" is not served here; \"{}\" is", Printable(name), names[0]));
    error.code = "model_not_found";
    return exchange->Respond(ErrorResponse(error));
  }
  HttpResponse response;
  response.body = ModelJson(*context, name);
  exchange->Respond(std::move(response));
}

}  // namespace cachalot
