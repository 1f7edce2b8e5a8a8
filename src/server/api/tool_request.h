// tools, tool_choice and parallel_tool_calls of a chat request, and what becomes of tools and calls where the
// model's template knows nothing of them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/model_bundle.h"
#include "server/api/api_error.h"
#include "tokenizer/chat/chat_template.h"

namespace cachalot {

struct ToolRequest {
  enum Choice { kAuto, kRequired, kNamed };
  std::shared_ptr<const ChatJson> tools;  // null: the model is told of none
  std::vector<std::string> names;  // of them
  Choice choice = kAuto;
  std::string named;
  bool parallel = true;

  bool any() const { return !names.empty(); }
};

std::optional<ApiError> ReadTools(const ChatJson& body, ToolRequest* request);
// Whether the model can be told of them, and its calls be read.
std::optional<ApiError> CheckTools(const ToolRequest& request, const ModelBundle& bundle);
// Into the messages goes what the template does not print by itself: a description of the tools, calls as text.
void WriteToolsInto(const ToolRequest& request, const ModelBundle& bundle, ChatJson* messages);

}  // namespace cachalot
