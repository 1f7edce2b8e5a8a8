// Generation: one chat or completion request on its way through the engine and back to the client.
// Invariant: it ends in exactly one of: a response, a closed stream, a client that has gone; and in one line of the log.
#pragma once

#include <memory>
#include <string>

#include "server/api/generation_params.h"
#include "server/http/http_server.h"
#include "server/server_context.h"

namespace cachalot {

enum class GenerationEndpoint { kChat, kCompletion };

// On the exchange's thread. The parameters have been checked.
void StartGeneration(ServerContext* context, std::shared_ptr<Exchange> exchange, GenerationEndpoint endpoint, GenerationParams params);

}  // namespace cachalot
