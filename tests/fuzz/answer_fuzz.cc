// Any bytes as an answer, cut anywhere, in every syntax: the parts are the text, the cuts change nothing, and no
// tag is left in the content.
#include <cstdint>

#include "base/check.h"
#include "tokenizer/chat/answer_testing.h"

namespace {

using cachalot::ParsedAnswer;
using cachalot::ToolSyntax;

// No tag in what is content at a stretch: one that only comes about where another was taken out is none.
void CheckContent(cachalot::AnswerFormat format, std::string_view text) {
  const auto marks = ToolSyntaxMarks(format.tools);
  format.keep_raw = true;
  cachalot::AnswerParser parser(std::move(format));
  std::vector<cachalot::AnswerEvent> events;
  parser.Push(text, &events);
  parser.Finish(&events);
  for (const auto& event : events) {
    if (event.part != cachalot::AnswerEvent::kContent) continue;
    for (const std::string_view mark : marks) {
      // These are words like any others outside a call, or parts of tags.
      if (mark == "[ARGS]" || mark == "[CALL_ID]" || mark == "｜DSML｜") continue;
      CHECK(event.text.find(mark) == std::string::npos) << mark << " in the content";
    }
  }
}

void CheckSyntax(ToolSyntax syntax, bool in_reasoning, bool printed, std::string_view text, size_t cut) {
  cachalot::AnswerFormat format{.in_reasoning = in_reasoning, .tools = syntax, .tool_names = {"f", "get_weather"}};
  if (printed) format.space = {.printed = true, .after_open = "\n", .before_close = "\n", .after_close = "\n\n"};
  const ParsedAnswer whole = ParseAnswer(format, {text});
  CHECK(whole.raw == text) << "a part of the text is missing";
  const auto num_open = static_cast<int>(whole.calls.size()) - whole.num_ended;
  CHECK(num_open == 0 || num_open == 1) << "only the last call may be cut off";
  for (const auto& [name, arguments] : whole.calls) {
    CHECK(!name.empty());
    CHECK(!arguments.empty() || (num_open == 1 && &arguments == &whole.calls.back().second));
  }
  CHECK(ParseAnswer(format, {text.substr(0, cut), text.substr(cut)}) == whole) << "cut at " << cut;
  std::vector<std::string_view> bytes;
  for (size_t i = 0; i < text.size(); ++i) bytes.push_back(text.substr(i, 1));
  CHECK(ParseAnswer(format, bytes) == whole) << "cut everywhere";
  CheckContent(std::move(format), text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t cut = text.empty() ? 0 : data[0] % (text.size() + 1);
  const bool in_reasoning = data[0] & 1, printed = data[0] & 2;
  CheckSyntax(ToolSyntax::kNone, in_reasoning, printed, text, cut);
  for (const ToolSyntax syntax : cachalot::AllToolSyntaxes()) CheckSyntax(syntax, in_reasoning, printed, text, cut);
  return 0;
}
