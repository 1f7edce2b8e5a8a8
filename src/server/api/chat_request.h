// The body of /v1/chat/completions (and what /apply-template and /tokenize share with it).
#pragma once

#include <optional>

#include "server/api/generation_params.h"
#include "server/api/tool_request.h"
#include "tokenizer/chat/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {

// The conversation of the body, with the tools that it may use, through the model's template.
std::optional<ApiError> RenderChat(const ChatJson& body, const ModelBundle& bundle, RenderedPrompt* prompt,
                                   ToolRequest* tools = nullptr);
// The tokens of a rendered conversation.
std::optional<ApiError> EncodeChat(const RenderedPrompt& prompt, const ModelBundle& bundle, std::vector<int32_t>* ids);

std::optional<ApiError> ParseChatRequest(const ChatJson& body, const ModelBundle& bundle, const ModelFacts& facts,
                                         GenerationParams* params);

}  // namespace cachalot
