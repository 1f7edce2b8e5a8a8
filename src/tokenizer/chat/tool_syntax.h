// The ways in which models write tool calls.
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace cachalot {

enum class ToolSyntax {
  kNone,
  kHermes,      // Qwen: <tool_call>{"name": …, "arguments": {…}}</tool_call>
  kLlama,       // Llama 3: the whole answer is {"name": …, "parameters": {…}}, or <|python_tag|>name.call(k="v")
  kMistral,     // [TOOL_CALLS] [{"name": …, "arguments": {…}}, …], or [TOOL_CALLS]name[ARGS]{…}
  kDeepSeekV3,  // V3, R1: <｜tool▁call▁begin｜>function<｜tool▁sep｜>name, arguments in a fence of ```json
  kDeepSeekV31, // <｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>
  kDeepSeekV32, // <｜DSML｜invoke name="…"><｜DSML｜parameter name="…" string="true">…
};

// All but kNone.
std::span<const ToolSyntax> AllToolSyntaxes();
// "none", "hermes", "llama3_json", "mistral", "deepseek_v3", "deepseek_v31", "deepseek_v32": vLLM's names.
std::string_view ToolSyntaxName(ToolSyntax syntax);
std::optional<ToolSyntax> FindToolSyntax(std::string_view name);
// The texts that the syntax is made of, as far as a vocabulary may have tokens for them. Such tokens count as
// special in some files and must be part of the text all the same.
std::span<const std::string_view> ToolSyntaxMarks(ToolSyntax syntax);

}  // namespace cachalot
