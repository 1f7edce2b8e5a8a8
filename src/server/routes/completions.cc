// POST /v1/completions
#include <nlohmann/json.hpp>

#include "server/api/completion_request.h"
#include "server/generation.h"
#include "server/request_line.h"
#include "server/routes/routes.h"

namespace cachalot {

void CompletionsRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange) {
  ChatJson body;
  GenerationParams params;
  std::optional<ApiError> error = ParseBody(exchange->request().body, &body);
  if (!error) error = ParseCompletionRequest(body, *context->bundle, context->facts, &params);
  if (error) {
    LogRefused(*context, exchange->request(), *error);
    return exchange->Respond(ErrorResponse(*error));
  }
  params.tenant = exchange->request().tenant;
  StartGeneration(context, exchange, GenerationEndpoint::kCompletion, std::move(params));
}

}  // namespace cachalot
