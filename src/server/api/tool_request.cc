#include "server/api/tool_request.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/text.h"
#include "server/api/field_reader.h"
#include "tokenizer/chat/tool_prompt.h"

namespace cachalot {
namespace {

constexpr size_t kMaxTools = 1024;
constexpr size_t kMaxNameBytes = 256;

ApiError Wrong(std::string param, std::string message, std::string code = "invalid_type") {
  ApiError error;
  error.param = std::move(param);
  error.message = std::move(message);
  error.code = std::move(code);
  return error;
}

// A name stands in markup, where these would end it.
bool IsName(const std::string& name) {
  const auto bad = [](char c) { return static_cast<unsigned char>(c) <= 0x20 || c == '"' || c == '\\' || c == '<' || c == '>' || c == 0x7f; };
  return !name.empty() && name.size() <= kMaxNameBytes && std::none_of(name.begin(), name.end(), bad);
}

std::optional<ApiError> ReadTool(const ChatJson& tool, const std::string& place, std::vector<std::string>* names) {
  if (!tool.is_object()) return Wrong(place, fmt::format("{} is {}: must be an object", place, Preview(tool)));
  const auto type = tool.find("type");
  if (type == tool.end() || *type != "function") {
    return Wrong(place + ".type", fmt::format("{}.type is {}: must be \"function\"", place, type == tool.end() ? "missing" : Preview(*type)),
                 "unsupported_value");
  }
  const auto function = tool.find("function");
  if (function == tool.end() || !function->is_object()) {
    return Wrong(place + ".function", fmt::format("{}.function must be an object", place));
  }
  const auto name = function->find("name");
  if (name == function->end() || !name->is_string() || !IsName(name->get_ref<const std::string&>())) {
    return Wrong(place + ".function.name",
                 fmt::format("{}.function.name is {}: must be a name of 1..{} bytes without spaces, quotes and <>", place,
                             name == function->end() ? "missing" : Preview(*name), kMaxNameBytes), "invalid_value");
  }
  const auto parameters = function->find("parameters");
  if (parameters != function->end() && !parameters->is_object() && !parameters->is_null()) {
    return Wrong(place + ".function.parameters", fmt::format("{}.function.parameters is {}: must be an object", place, Preview(*parameters)));
  }
  names->push_back(name->get<std::string>());
  return std::nullopt;
}

std::optional<ApiError> ReadChoice(const ChatJson& choice, ToolRequest* request) {
  if (choice == "auto") return std::nullopt;
  if (choice == "required") {
    request->choice = ToolRequest::kRequired;
    return std::nullopt;
  }
  const ChatJson name = choice.is_object() && choice.value("/type"_json_pointer, ChatJson("function")) == "function"
                            ? choice.value("/function/name"_json_pointer, ChatJson()) : ChatJson();
  if (!name.is_string()) {
    return Wrong("tool_choice", fmt::format("tool_choice is {}: must be \"auto\", \"none\", \"required\" or "
                                            "{{\"type\": \"function\", \"function\": {{\"name\": …}}}}", Preview(choice)), "invalid_value");
  }
  request->choice = ToolRequest::kNamed;
  request->named = name.get<std::string>();
  if (std::find(request->names.begin(), request->names.end(), request->named) != request->names.end()) return std::nullopt;
  return Wrong("tool_choice", fmt::format("tool_choice names \"{}\", which is not among the tools", Printable(request->named, 60)), "invalid_value");
}

void Describe(const std::string& text, bool supports_system, ChatJson* messages) {
  ChatJson& first = messages->front();
  if (supports_system && first["role"] != "system") {
    messages->insert(messages->begin(), ChatJson({{"role", "system"}, {"content", text}}));
    return;
  }
  // Behind the system's own text, or in front of what the user says.
  const bool behind = first["role"] == "system";
  ChatJson& content = first["content"];
  if (content.is_array()) {
    content.insert(behind ? content.end() : content.begin(), ChatJson({{"type", "text"}, {"text", text}}));
  } else if (content.is_string()) {
    const std::string own = content.get<std::string>();
    content = behind ? own + "\n\n" + text : text + "\n\n" + own;
  } else {
    content = text;
  }
}

}  // namespace

std::optional<ApiError> ReadTools(const ChatJson& body, ToolRequest* request) {
  FieldReader fields(body);
  fields.Refuse("functions", "the older form of tools is not supported: use tools");
  fields.Refuse("function_call", "the older form of tool_choice is not supported: use tool_choice");
  request->parallel = fields.Bool("parallel_tool_calls", true);
  const ChatJson* tools = fields.Find("tools");
  const ChatJson* choice = fields.Find("tool_choice");
  if (!fields.ok()) return fields.error();
  if (tools != nullptr && !tools->is_array()) return Wrong("tools", fmt::format("tools is {}: must be a list", Preview(*tools)));
  if (tools == nullptr || tools->empty()) {
    if (choice == nullptr || *choice == "none" || *choice == "auto") return std::nullopt;
    return Wrong("tool_choice", fmt::format("tool_choice is {} without tools", Preview(*choice)), "invalid_value");
  }
  if (tools->size() > kMaxTools) {
    return Wrong("tools", fmt::format("tools has {} entries: at most {} are allowed", tools->size(), kMaxTools), "too_long");
  }
  for (size_t i = 0; i < tools->size(); ++i) {
    if (auto error = ReadTool((*tools)[i], fmt::format("tools[{}]", i), &request->names)) return error;
  }
  if (choice != nullptr && *choice == "none") {
    request->names.clear();
    return std::nullopt;
  }
  request->tools = std::make_shared<const ChatJson>(*tools);
  return choice == nullptr ? std::nullopt : ReadChoice(*choice, request);
}

std::optional<ApiError> CheckTools(const ToolRequest& request, const ModelBundle& bundle) {
  if (!request.any() || bundle.tool_syntax != ToolSyntax::kNone) return std::nullopt;
  return Wrong("tools", "how this model writes tool calls cannot be told from its chat template (cachalot serve --tool-call-parser says it)",
               "unsupported_value");
}

void WriteToolsInto(const ToolRequest& request, const ModelBundle& bundle, ChatJson* messages) {
  const ChatTemplateCaps& caps = bundle.chat_template->caps();
  if (!caps.supports_tool_calls) {
    for (ChatJson& message : *messages) {
      const auto calls = message.find("tool_calls");
      if (message["role"] != "assistant" || calls == message.end() || !calls->is_array() || calls->empty()) continue;
      std::string text;
      if (const auto content = message.find("content"); content != message.end() && content->is_string()) text = content->get<std::string>();
      for (const ChatJson& call : *calls) {
        const ChatJson& function = call.at("function");
        const ChatJson arguments = function.value("arguments", ChatJson("{}"));
        if (!text.empty()) text += '\n';
        text += WriteToolCall(bundle.tool_syntax, function.at("name").get<std::string>(),
                              arguments.is_string() ? arguments.get<std::string>()
                                                    : arguments.dump(-1, ' ', false, ChatJson::error_handler_t::replace));
      }
      message["content"] = text;
      message.erase("tool_calls");
    }
  }
  if (request.any() && !caps.supports_tools) Describe(DescribeTools(bundle.tool_syntax, *request.tools), caps.supports_system, messages);
}

}  // namespace cachalot
