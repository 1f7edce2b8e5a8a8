// POST /apply-template: a conversation as the text that the model would get.
#include <nlohmann/json.hpp>

#include "server/api/chat_request.h"
#include "server/api/json_text.h"
#include "server/routes/routes.h"

namespace cachalot {

void ApplyTemplateRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange) {
  ChatJson body;
  RenderedPrompt prompt;
  std::optional<ApiError> error = ParseBody(exchange->request().body, &body);
  if (!error) error = RenderChat(body, *context->bundle, &prompt);
  if (error) return exchange->Respond(ErrorResponse(*error));
  HttpResponse response;
  response.body = "{\"prompt\":" + JsonString(prompt.text) + "}";
  exchange->Respond(std::move(response));
}

}  // namespace cachalot
