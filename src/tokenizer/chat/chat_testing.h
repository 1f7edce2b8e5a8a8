// What the tests of chat templates share.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tokenizer/chat/chat_template.h"

namespace cachalot {

// A file below tests/data/chat; a missing one fails the test.
std::string ReadChatFile(const std::string& name);
std::unique_ptr<ChatTemplate> ParseOrDie(std::string_view source, ChatTemplateLimits limits = {});

// Renders with <s> and </s>, no tools, nothing adapted; the variables of `context` are set.
Result<RenderedPrompt> RenderWith(std::string_view source, const ChatJson& messages,
                                  const ChatJson& context = ChatJson::object(),
                                  ChatTemplateLimits limits = {});

// The bytes of the prompt that count as the request's.
std::string UserText(const RenderedPrompt& prompt);
// The prompt with a '#' for every range of the request's.
std::string TrustedText(const RenderedPrompt& prompt);
// Sorted, disjoint, not touching, inside the text.
bool RangesAreSound(const RenderedPrompt& prompt);

}  // namespace cachalot
