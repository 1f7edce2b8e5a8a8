#include "tokenizer/chat/chat_caps.h"

#include <nlohmann/json.hpp>

namespace cachalot {
namespace {

// Words that no template contains. The call's id has the nine characters that Mistral's templates insist on.
constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"zqxtool","description":"d","parameters":
  {"type":"object","properties":{"zqxkey":{"type":"string","description":"d"}},"required":["zqxkey"]}}}])";
constexpr const char* kUser = R"({"role":"user","content":"zqxuser"})";
constexpr const char* kSystem = R"({"role":"system","content":"zqxsystem"})";
constexpr const char* kParts = R"({"role":"user","content":[{"type":"text","text":"zqxuser"}]})";
constexpr const char* kResult =
    R"({"role":"tool","tool_call_id":"zqxcall01","name":"zqxcalled","content":"zqxresult"})";

bool Has(const Result<RenderedPrompt>& prompt, std::string_view word) {
  return prompt.ok() && prompt->text.find(word) != std::string::npos;
}

class Prober {
 public:
  explicit Prober(const RenderFn& render) : render_(render) {}

  Result<RenderedPrompt> Render(std::initializer_list<std::string> messages, bool with_tools) const {
    std::string text = "[";
    for (const std::string& message : messages) text += (text.size() > 1 ? "," : "") + message;
    const ChatJson list = ChatJson::parse(text + "]");
    const ChatJson tools = ChatJson::parse(kTools);
    ChatInput input;
    input.messages = &list;
    if (with_tools) input.tools = &tools;
    input.now_unix_seconds = 0;
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
      prompt = with_result ? Render({kUser, call, kResult}, with_tools) : Render({kUser, call}, with_tools);
      if (Has(prompt, "zqxcalled")) break;
    }
    return prompt;
  }

 private:
  const RenderFn& render_;
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
  caps.supports_tool_results =
      Has(probe.RenderCall(!caps.needs_text_content, object_arguments, true), "zqxresult");
  return caps;
}

}  // namespace cachalot
