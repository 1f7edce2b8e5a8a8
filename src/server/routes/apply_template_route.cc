// POST /apply-template: a conversation as the text that the model would get.
#include <nlohmann/json.hpp>

#include "server/api/chat_request.h"
#include "server/api/json_text.h"
#include "server/routes/routes.h"

namespace cachalot {

namespace {

HttpResponse Answer(const ServerContext& context, const std::string& text) {
  ChatJson body;
  RenderedPrompt prompt;
  std::optional<ApiError> error = ParseBody(text, &body);
  if (!error) error = RenderChat(body, *context.bundle, &prompt);
  if (error) return ErrorResponse(*error);
  HttpResponse response;
  response.body = "{\"prompt\":" + JsonString(prompt.text) + "}";
  return response;
}

}  // namespace

void ApplyTemplateRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange) {
  RespondWith(context, exchange, Answer);
}

}  // namespace cachalot
