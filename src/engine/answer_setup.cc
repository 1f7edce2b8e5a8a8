#include "engine/answer_setup.h"

#include <algorithm>
#include <utility>

#include "tokenizer/chat/chat_template.h"
#include "tokenizer/chat/tool_prompt.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {
namespace {

// What stands before the name of a call and between it and its arguments, from how a call is written.
std::pair<std::string, std::string> CallTexts(const ModelBundle& bundle) {
  const ChatTemplateCaps& caps = bundle.chat_template->caps();
  if (caps.tool_syntax == bundle.tool_syntax) return {caps.call_open, caps.call_middle};
  const std::string call = WriteToolCall(bundle.tool_syntax, "\x01", "\x02");
  const size_t name = call.find('\x01'), arguments = call.find('\x02');
  return {call.substr(0, name), call.substr(name + 1, arguments - name - 1)};
}

// What stands behind the arguments of a call that began like that, up to its end.
std::string CallClose(ToolSyntax syntax, std::string_view opening) {
  std::string close(static_cast<size_t>(std::count(opening.begin(), opening.end(), '{')), '}');
  if (syntax == ToolSyntax::kHermes) close += "\n</tool_call>";
  if (syntax == ToolSyntax::kDeepSeekV3) close += "\n```<｜tool▁call▁end｜>";
  if (syntax == ToolSyntax::kDeepSeekV31) close += "<｜tool▁call▁end｜>";
  return close;
}

}  // namespace

AnswerFormat AnswerFormatOf(const ModelBundle& bundle, bool split_reasoning, bool with_tools) {
  AnswerFormat format;
  format.split_reasoning = split_reasoning;
  if (bundle.chat_template != nullptr) format.space = bundle.chat_template->caps().reasoning;
  if (with_tools) format.tools = bundle.tool_syntax;
  return format;
}

std::vector<int32_t> ShownIdsOf(const ModelBundle& bundle, const AnswerFormat& format) {
  std::vector<int32_t> ids;
  const auto add = [&](std::string_view text) {
    const auto id = bundle.tokenizer->FindToken(text);
    if (id && bundle.tokenizer->IsSpecial(*id)) ids.push_back(*id);
  };
  add("<think>");
  add("</think>");
  for (const std::string_view mark : ToolSyntaxMarks(format.tools)) add(mark);
  return ids;
}

ReasoningLimits ReasoningLimitsOf(const ModelBundle& bundle, bool inside, int32_t budget) {
  ReasoningLimits limits{.inside = inside, .budget = budget, .close_ids = {}, .then_ids = {}};
  if (budget < 0 || bundle.tokenizer == nullptr) return limits;
  std::string text = "\n</think>\n\n";
  if (bundle.chat_template != nullptr && bundle.chat_template->caps().reasoning.printed) {
    const ReasoningSpace& space = bundle.chat_template->caps().reasoning;
    text = space.before_close + "</think>" + space.after_close;
  }
  Result<std::vector<int32_t>> ids = bundle.tokenizer->Encode(text, {.add_special = false});
  if (ids.ok()) limits.close_ids = std::move(*ids);
  return limits;
}

Result<CallOpening> OpenCall(const ModelBundle& bundle, std::string_view name, const std::vector<std::string>& names) {
  const auto [before, behind] = CallTexts(bundle);
  CallOpening opening{.text = before, .ids = {}, .rule = {}};
  if (bundle.tool_syntax != ToolSyntax::kDeepSeekV32) {
    opening.rule = {.on = true, .names = {}, .middle = behind, .close = CallClose(bundle.tool_syntax, before + behind)};
    if (name.empty()) opening.rule.names = names;
  }
  std::pair<int64_t, int64_t> range{0, 0};
  if (!name.empty()) {
    range = {static_cast<int64_t>(before.size()), static_cast<int64_t>(before.size() + name.size())};
    opening.text += name;
    opening.text += behind;
    // A space in front of the arguments belongs to their first token.
    while (opening.text.ends_with(' ')) opening.text.pop_back();
  }
  EncodeOptions options{.add_special = false};
  if (!name.empty()) options.user_ranges = std::span(&range, 1);
  ASSIGN_OR_RETURN(opening.ids, bundle.tokenizer->Encode(opening.text, options));
  return opening;
}

}  // namespace cachalot
