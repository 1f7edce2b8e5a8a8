#include "tokenizer/chat/chat_caps.h"

#include <nlohmann/json.hpp>

#include "tokenizer/chat/answer_parser.h"

namespace cachalot {
namespace {

// Words that no template contains. The call's id has the nine characters that Mistral's templates insist on.
constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"zqxtool","description":"d","parameters":
  {"type":"object","properties":{"zqxkey":{"type":"string","description":"d"}},"required":["zqxkey"]}}}])";
constexpr const char* kUser = R"({"role":"user","content":"zqxuser"})";
constexpr const char* kSystem = R"({"role":"system","content":"zqxsystem"})";
constexpr const char* kParts = R"({"role":"user","content":[{"type":"text","text":"zqxuser"}]})";
constexpr const char* kReasoned =
    R"({"role":"assistant","reasoning_content":"zqxreason","content":"zqxcontent"})";
constexpr const char* kResult =
    R"({"role":"tool","tool_call_id":"zqxcall01","name":"zqxcalled","content":"zqxresult"})";

bool Has(const Result<RenderedPrompt>& prompt, std::string_view word) {
  return prompt.ok() && prompt->text.find(word) != std::string::npos;
}

// Reads a call out of `text` as `syntax` writes it. False: that is not the one that was printed.
bool ReadCall(ToolSyntax syntax, std::string_view text, ChatTemplateCaps* caps) {
  AnswerParser parser({.split_reasoning = false, .tools = syntax, .tool_names = {"zqxcalled"}, .keep_raw = true});
  std::vector<AnswerEvent> events;
  parser.Push(text, &events);
  parser.Finish(&events);
  std::string before, open, middle, arguments;
  int num_calls = 0;
  for (const AnswerEvent& event : events) {
    if (event.part == AnswerEvent::kCallName) {
      if (event.text != "zqxcalled") return false;
      ++num_calls;
      open = before;
    } else if (event.part == AnswerEvent::kCallArguments) {
      if (arguments.empty()) middle = before;
      arguments += event.text;
    }
    before = event.part == AnswerEvent::kMarkup ? event.raw : "";
  }
  if (num_calls != 1) return false;
  const ChatJson value = ChatJson::parse(arguments, nullptr, /*allow_exceptions=*/false);
  if (value != ChatJson::object({{"zqxkey", "zqxvalue"}})) return false;
  if (syntax == ToolSyntax::kHermes) open.erase(0, open.find_first_not_of('\n'));  // behind content only
  middle.resize(std::min(middle.size(), middle.find("<｜DSML｜parameter")));
  caps->tool_syntax = syntax;
  caps->call_open = std::move(open);
  caps->call_middle = std::move(middle);
  return true;
}

class Prober {
 public:
  explicit Prober(const RenderFn& render) : render_(render) {}

  Result<RenderedPrompt> Render(std::initializer_list<std::string> messages, bool with_tools,
                                bool prompts = true) const {
    std::string text = "[";
    for (const std::string& message : messages) text += (text.size() > 1 ? "," : "") + message;
    const ChatJson list = ChatJson::parse(text + "]");
    const ChatJson tools = ChatJson::parse(kTools);
    ChatInput input;
    input.messages = &list;
    if (with_tools) input.tools = &tools;
    input.now_unix_seconds = 0;
    input.add_generation_prompt = prompts;
    const ChatJson thinks = {{"enable_thinking", true}, {"thinking", true}};
    if (!prompts) input.extra = &thinks;
    return render_(input);
  }

  // A conversation with a tool call in it; some templates print calls only when tools were declared.
  Result<RenderedPrompt> RenderCall(bool null_content, bool object_arguments, bool with_result) const {
    const std::string arguments =
        object_arguments ? R"({"zqxkey":"zqxvalue"})" : R"("{\"zqxkey\": \"zqxvalue\"}")";
    const std::string call =
        R"({"role":"assistant","content":)" + std::string(null_content ? "null" : "\"\"") +
        R"(,"tool_calls":[{"id":"zqxcall01","type":"function","function":{"name":"zqxcalled","arguments":)" +
        arguments + "}}]}";
    Result<RenderedPrompt> prompt = Internal("not rendered");
    for (const bool with_tools : {false, true}) {
      tools_declared_ = with_tools;
      prompt = with_result ? Render({kUser, call, kResult}, with_tools) : Render({kUser, call}, with_tools);
      if (Has(prompt, "zqxcalled")) break;
    }
    return prompt;
  }

  // Which syntax the call has that RenderCall printed last.
  void FindSyntax(const Result<RenderedPrompt>& call, ChatTemplateCaps* caps) const {
    if (!call.ok()) return;
    const std::string_view text = call->text;
    const Result<RenderedPrompt> prompt = Render({kUser}, tools_declared_);
    std::vector<size_t> starts;
    if (prompt.ok() && text.starts_with(prompt->text)) starts.push_back(prompt->text.size());
    if (const size_t user = text.rfind("zqxuser"); user != text.npos) starts.push_back(user + 7);
    for (const size_t start : starts) {
      for (const ToolSyntax syntax : AllToolSyntaxes()) {
        if (ReadCall(syntax, text.substr(start), caps)) return;
      }
    }
  }

  ReasoningSpace FindReasoning() const {
    ReasoningSpace space;
    const Result<RenderedPrompt> prompt = Render({kUser, kReasoned}, false, /*prompts=*/false);
    if (!prompt.ok()) return space;
    const std::string_view text = prompt->text;
    // The white space before `what`, which must stand right behind it.
    size_t at = text.rfind("<think>");
    const auto take = [&](std::string_view what, std::string* white) {
      const size_t begin = std::min(text.find_first_not_of(" \t\r\n", at), text.size());
      *white = text.substr(at, begin - at);
      at = begin + what.size();
      return text.substr(begin).starts_with(what);
    };
    if (at == text.npos) return space;
    at += 7;
    ReasoningSpace found;
    found.printed = true;
    const bool all = take("zqxreason", &found.after_open) && take("</think>", &found.before_close) &&
                     take("zqxcontent", &found.after_close);
    return all ? found : space;
  }

 private:
  const RenderFn& render_;
  mutable bool tools_declared_ = false;
};

}  // namespace

ChatTemplateCaps ProbeCaps(const RenderFn& render) {
  const Prober probe(render);
  ChatTemplateCaps caps;
  const Result<RenderedPrompt> plain = probe.Render({kUser}, false);
  caps.opens_think = plain.ok() && EndsInsideThink(*plain);
  caps.supports_system = Has(probe.Render({kSystem, kUser}, false), "zqxsystem");
  caps.supports_tools = Has(probe.Render({kUser}, true), "zqxtool");

  // A template without knowledge of parts fails or prints the list as Python or JSON would.
  const Result<RenderedPrompt> parts = probe.Render({kParts}, false);
  caps.reads_content_parts = Has(parts, "zqxuser") && !Has(parts, "'text'") && !Has(parts, "\"text\"");

  bool objects = false;
  bool strings = false;
  bool null_works = false;
  bool text_works = false;
  for (const bool null_content : {true, false}) {
    for (const bool object_arguments : {true, false}) {
      const Result<RenderedPrompt> prompt = probe.RenderCall(null_content, object_arguments, false);
      if (!Has(prompt, "zqxcalled")) continue;
      (null_content ? null_works : text_works) = true;
      // Printed without tojson an object looks like Python; printed with tojson a string is quoted a second
      // time.
      if (object_arguments)
        objects = objects || (Has(prompt, "zqxvalue") && !Has(prompt, "'zqxkey'"));
      else
        strings = strings || (Has(prompt, "zqxvalue") && !Has(prompt, "\\\"zqxkey"));
    }
  }
  caps.supports_tool_calls = null_works || text_works;
  caps.needs_text_content = !null_works && text_works;
  if (objects && !strings) caps.tool_arguments = ToolArgumentsForm::kObject;
  if (strings && !objects) caps.tool_arguments = ToolArgumentsForm::kString;
  const bool object_arguments = caps.tool_arguments != ToolArgumentsForm::kString;
  if (caps.supports_tool_calls) {
    probe.FindSyntax(probe.RenderCall(!caps.needs_text_content, object_arguments, false), &caps);
  }
  caps.reasoning = probe.FindReasoning();
  caps.supports_tool_results =
      Has(probe.RenderCall(!caps.needs_text_content, object_arguments, true), "zqxresult");
  return caps;
}

}  // namespace cachalot
