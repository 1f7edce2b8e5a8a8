// Generation: one chat or completion request on its way through the engine and back to the client.
// Invariant: it ends in exactly one of: a response, a closed stream, a client that has gone; and in one line of the log.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "server/api/field_reader.h"
#include "server/api/generation_params.h"
#include "server/http/http_server.h"
#include "server/server_context.h"

namespace cachalot {

enum class GenerationEndpoint { kChat, kCompletion };

// On the exchange's thread. Begins what `parse` makes of the body, or answers with its error.
using ParseRequest = std::optional<ApiError> (*)(const ChatJson& body, const ModelBundle& bundle, const ModelFacts& facts, GenerationParams* params);
void PrepareGeneration(ServerContext* context, const std::shared_ptr<Exchange>& exchange, GenerationEndpoint endpoint, ParseRequest parse);
// On the exchange's thread. The parameters have been checked.
void StartGeneration(ServerContext* context, std::shared_ptr<Exchange> exchange, GenerationEndpoint endpoint, GenerationParams params);

}  // namespace cachalot
