// The body of /v1/completions.
#pragma once

#include <optional>

#include "server/api/generation_params.h"

namespace cachalot {

std::optional<ApiError> ParseCompletionRequest(const ChatJson& body, const ModelBundle& bundle, const ModelFacts& facts,
                                               GenerationParams* params);

}  // namespace cachalot
