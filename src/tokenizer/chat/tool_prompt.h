// What stands in for a template that knows nothing of tools: their description as text, for the system
// message, and calls as text.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/chat/chat_template.h"

namespace cachalot {

// The tools (OpenAI's list) and how to call them.
std::string DescribeTools(ToolSyntax syntax, const ChatJson& tools);
// One call as a model of this syntax writes it; arguments are JSON text.
std::string WriteToolCall(ToolSyntax syntax, std::string_view name, std::string_view arguments);

}  // namespace cachalot
