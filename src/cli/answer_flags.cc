#include "cli/answer_flags.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "server/api/tool_request.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxToolsBytes = 16 << 20;
constexpr std::string_view kDim = "\x1b[2m", kCall = "\x1b[36m", kPlain = "\x1b[0m";

}  // namespace

void DeclareToolCallParser(FlagSet* flags, std::string* name) {
  std::vector<std::string> names = {"auto"};
  for (const ToolSyntax syntax : AllToolSyntaxes()) names.emplace_back(ToolSyntaxName(syntax));
  std::string list;
  for (const auto& each : names) list += (list.empty() ? "" : each == "mistral" ? ",\n" : ", ") + each;
  flags->Choice("--tool-call-parser", name, std::move(names),
                "how the model writes tool calls: " + list + "\n(default auto: as its chat template does)");
}

void AnswerFlags::Declare(FlagSet* flags) {
  flags->Choice("--reasoning", &reasoning, {"show", "hide", "separate"},
                "what becomes of the model's reasoning: it is shown before the answer\n(default), hidden, or goes to "
                "standard error");
  flags->Int("--reasoning-budget", &reasoning_budget, -1, INT32_MAX, "N",
             "tokens of reasoning at most; then it is ended (-1: any number)");
  flags->String("--tools", &tools_file, "FILE", "functions that the model may call: a JSON list as OpenAI's API has it;\n"
                "calls are shown, not made");
  DeclareToolCallParser(flags, &tool_call_parser);
}

ShowReasoning AnswerFlags::mode() const {
  return reasoning == "hide" ? ShowReasoning::kHide : reasoning == "separate" ? ShowReasoning::kSeparate : ShowReasoning::kShow;
}

Status AnswerFlags::Apply(Session* session) const {
  if (const auto syntax = FindToolSyntax(tool_call_parser)) session->bundle().tool_syntax = *syntax;
  session->set_reasoning_budget(reasoning_budget);
  if (tools_file.empty()) return Status::Ok();
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(tools_file, kMaxToolsBytes));
  Result<ChatJson> tools = ParseChatJson(text);
  if (!tools.ok()) return tools.status().WithContext(tools_file);
  ToolRequest request;
  ChatJson body = ChatJson::object();
  body["tools"] = std::move(*tools);
  auto error = ReadTools(body, &request);
  if (!error) error = CheckTools(request, session->bundle());
  if (error) return InvalidArgument("{}: {}", tools_file, error->message);
  session->set_tools(std::move(request));
  return Status::Ok();
}

AnswerPrinter::AnswerPrinter(Output* output, AnswerFormat format, ShowReasoning mode, bool color)
    : output_(*output), parser_(std::move(format)), mode_(mode), color_(color) {}

Status AnswerPrinter::Push(std::string_view text) {
  std::vector<AnswerEvent> events;
  parser_.Push(text, &events);
  return Print(events);
}

Status AnswerPrinter::Finish() {
  std::vector<AnswerEvent> events;
  parser_.Finish(&events);
  RETURN_IF_ERROR(Print(events));
  RETURN_IF_ERROR(EndReasoning());
  if (std::exchange(call_open_, false)) return Write(fmt::format("…{}\n", color_ ? kPlain : ""));  // cut off
  return line_open_ ? Write("\n") : Status::Ok();
}

Conversation::Answer AnswerPrinter::answer() const {
  Conversation::Answer answer{.content = content_, .reasoning = reasoning_, .calls = {}};
  for (const Call& call : calls_) answer.calls.emplace_back(call.name, call.arguments);
  return answer;
}

Status AnswerPrinter::Print(const std::vector<AnswerEvent>& events) {
  for (const AnswerEvent& event : events) RETURN_IF_ERROR(Print(event));
  return Status::Ok();
}

Status AnswerPrinter::Print(const AnswerEvent& event) {
  if (event.part == AnswerEvent::kMarkup) return Status::Ok();
  if (event.part == AnswerEvent::kReasoning) return Reasoning(event.text);
  RETURN_IF_ERROR(EndReasoning());
  switch (event.part) {
    case AnswerEvent::kContent:
      content_ += event.text;
      return Write(event.text);
    case AnswerEvent::kCallName:
      calls_.push_back({event.text, ""});
      call_open_ = true;
      if (line_open_) RETURN_IF_ERROR(Write("\n"));
      return Write(fmt::format("{}→ {}(", color_ ? kCall : "", event.text));
    case AnswerEvent::kCallArguments:
      calls_.back().arguments += event.text;
      return Write(event.text);
    case AnswerEvent::kCallEnd:
      call_open_ = false;
      return Write(fmt::format("){}\n", color_ ? kPlain : ""));
    default:
      return Status::Ok();
  }
}

Status AnswerPrinter::Reasoning(const std::string& text) {
  reasoning_ += text;
  if (mode_ == ShowReasoning::kHide) return Status::Ok();
  const bool begins = !std::exchange(in_reasoning_, true);
  if (mode_ == ShowReasoning::kSeparate) {
    PrintNote(text);
    return Status::Ok();
  }
  if (begins) RETURN_IF_ERROR(Write(color_ ? kDim : "<think>\n"));
  return Write(text);
}

Status AnswerPrinter::EndReasoning() {
  if (!std::exchange(in_reasoning_, false)) return Status::Ok();
  if (mode_ == ShowReasoning::kSeparate) {
    PrintNote("\n");
    return Status::Ok();
  }
  return Write(fmt::format("{}\n\n", color_ ? kPlain : "\n</think>"));
}

Status AnswerPrinter::Write(std::string_view text) {
  if (!text.empty()) line_open_ = text.back() != '\n';
  return output_.Write(text);
}

}  // namespace cachalot
