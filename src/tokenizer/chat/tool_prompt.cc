#include "tokenizer/chat/tool_prompt.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace cachalot {

std::string WriteToolCall(ToolSyntax syntax, std::string_view name, std::string_view arguments) {
  switch (syntax) {
    case ToolSyntax::kNone:
    case ToolSyntax::kHermes:
      return fmt::format("<tool_call>\n{{\"name\": \"{}\", \"arguments\": {}}}\n</tool_call>", name, arguments);
    case ToolSyntax::kLlama:
      return fmt::format("{{\"name\": \"{}\", \"parameters\": {}}}", name, arguments);
    case ToolSyntax::kMistral:
      return fmt::format("[TOOL_CALLS] [{{\"name\": \"{}\", \"arguments\": {}}}]", name, arguments);
    case ToolSyntax::kDeepSeekV3:
      return fmt::format(
          "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
          "<｜tool▁calls▁end｜>",
          name, arguments);
    case ToolSyntax::kDeepSeekV31:
      return fmt::format(
          "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", name,
          arguments);
    case ToolSyntax::kDeepSeekV32:
      return fmt::format("<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"{}\">\n{}\n</｜DSML｜invoke>\n"
                         "</｜DSML｜function_calls>",
                         name, arguments);
  }
  return "";
}

std::string DescribeTools(ToolSyntax syntax, const ChatJson& tools) {
  std::string text = "# Tools\n\nThese functions can be called:\n";
  for (const ChatJson& tool : tools) {
    const auto function = tool.find("function");
    text += '\n' + (function == tool.end() ? tool : *function).dump(-1, ' ', false, ChatJson::error_handler_t::replace);
  }
  text += "\n\nTo call one, write exactly this, with the function's name and a JSON object of its arguments:\n" +
          WriteToolCall(syntax, "NAME", "{\"ARGUMENT\": VALUE}") +
          "\nWrite nothing behind a call: its result comes as the next message. Without need of a function, answer "
          "as usual.";
  return text;
}

}  // namespace cachalot
