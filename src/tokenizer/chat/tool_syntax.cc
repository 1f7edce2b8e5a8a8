#include "tokenizer/chat/tool_syntax.h"

namespace cachalot {
namespace {

constexpr ToolSyntax kAll[] = {ToolSyntax::kHermes,     ToolSyntax::kLlama,       ToolSyntax::kMistral,
                               ToolSyntax::kDeepSeekV3, ToolSyntax::kDeepSeekV31, ToolSyntax::kDeepSeekV32};

constexpr std::string_view kHermesMarks[] = {"<tool_call>", "</tool_call>"};
constexpr std::string_view kLlamaMarks[] = {"<|python_tag|>"};
constexpr std::string_view kMistralMarks[] = {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"};
constexpr std::string_view kDeepSeekMarks[] = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
                                               "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"};
constexpr std::string_view kDsmlMarks[] = {"｜DSML｜"};

}  // namespace

std::span<const ToolSyntax> AllToolSyntaxes() {
  return kAll;
}

std::string_view ToolSyntaxName(ToolSyntax syntax) {
  switch (syntax) {
    case ToolSyntax::kNone:
      return "none";
    case ToolSyntax::kHermes:
      return "hermes";
    case ToolSyntax::kLlama:
      return "llama3_json";
    case ToolSyntax::kMistral:
      return "mistral";
    case ToolSyntax::kDeepSeekV3:
      return "deepseek_v3";
    case ToolSyntax::kDeepSeekV31:
      return "deepseek_v31";
    case ToolSyntax::kDeepSeekV32:
      return "deepseek_v32";
  }
  return "?";
}

std::optional<ToolSyntax> FindToolSyntax(std::string_view name) {
  if (name == "none") return ToolSyntax::kNone;
  for (const ToolSyntax syntax : kAll) {
    if (ToolSyntaxName(syntax) == name) return syntax;
  }
  return std::nullopt;
}

std::span<const std::string_view> ToolSyntaxMarks(ToolSyntax syntax) {
  switch (syntax) {
    case ToolSyntax::kNone:
      return {};
    case ToolSyntax::kHermes:
      return kHermesMarks;
    case ToolSyntax::kLlama:
      return kLlamaMarks;
    case ToolSyntax::kMistral:
      return kMistralMarks;
    case ToolSyntax::kDeepSeekV3:
    case ToolSyntax::kDeepSeekV31:
      return kDeepSeekMarks;
    case ToolSyntax::kDeepSeekV32:
      return kDsmlMarks;
  }
  return {};
}

}  // namespace cachalot
