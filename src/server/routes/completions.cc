// POST /v1/completions
#include "server/api/completion_request.h"
#include "server/generation.h"
#include "server/routes/routes.h"

namespace cachalot {

void CompletionsRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange) {
  PrepareGeneration(context, exchange, GenerationEndpoint::kCompletion, ParseCompletionRequest);
}

}  // namespace cachalot
