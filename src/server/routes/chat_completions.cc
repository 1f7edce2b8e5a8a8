// POST /v1/chat/completions
#include "server/api/chat_request.h"
#include "server/generation.h"
#include "server/routes/routes.h"

namespace cachalot {

void ChatCompletionsRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange) {
  PrepareGeneration(context, exchange, GenerationEndpoint::kChat, ParseChatRequest);
}

}  // namespace cachalot
