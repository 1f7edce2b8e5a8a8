// What models write is what their templates print: a call that was printed is read, and printed again from what
// was read it is the same text, so that the next turn finds its beginning in the prefix cache.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tokenizer/chat/answer_testing.h"
#include "tokenizer/chat/chat_testing.h"
#include "tokenizer/chat/tool_prompt.h"

namespace cachalot {
namespace {

constexpr const char* kTools = R"([{"type": "function", "function": {"name": "get_weather", "description": "d", "parameters":
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}])";
constexpr const char* kArguments = R"({"city": "Zürich \"West\"", "days": [1, 2.5], "deep": {"a": null}})";

struct Template {
  const char* file;
  ToolSyntax syntax;
  const char* open;
  const char* middle;
  bool continues;     // the next prompt begins with this one and its answer
  size_t most_calls;  // in one message
};

const Template kTemplates[] = {
    {"Qwen-Qwen2.5-7B-Instruct.jinja", ToolSyntax::kHermes, "<tool_call>\n{\"name\": \"", "\", \"arguments\": ", true, 2},
    {"Qwen-Qwen3-0.6B.jinja", ToolSyntax::kHermes, "<tool_call>\n{\"name\": \"", "\", \"arguments\": ", true, 2},
    {"meta-llama-Llama-3.1-8B-Instruct.jinja", ToolSyntax::kLlama, "{\"name\": \"", "\", \"parameters\": ", true, 1},
    {"mistral-v3.jinja", ToolSyntax::kMistral, "[TOOL_CALLS] [{\"name\": \"", "\", \"arguments\": ", false, 2},
    {"mistral-nemo.jinja", ToolSyntax::kMistral, "[TOOL_CALLS]{\"name\": \"", "\", \"arguments\": ", false, 2},
    {"deepseek-ai-DeepSeek-V3.jinja", ToolSyntax::kDeepSeekV3,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", true, 1},
    {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja", ToolSyntax::kDeepSeekV3,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", false, 1},
    {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja", ToolSyntax::kDeepSeekV3,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", false, 2},
    {"deepseek-ai-DeepSeek-V3.1.jinja", ToolSyntax::kDeepSeekV31, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
     "<｜tool▁sep｜>", true, 2},
    {"deepseek-ai-DeepSeek-V3.2.jinja", ToolSyntax::kDeepSeekV32,
     "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"", "\">\n", true, 2},
};

class AnswerTemplateTest : public testing::TestWithParam<Template> {
 protected:
  void SetUp() override { template_ = ParseOrDie(ReadChatFile(std::string("templates/") + GetParam().file)); }
  const ChatTemplateCaps& caps() const { return template_->caps(); }

  std::string Render(const ChatJson& messages, bool prompts) const {
    const ChatJson tools = ChatJson::parse(kTools);
    ChatInput input;
    input.messages = &messages;
    input.tools = &tools;
    input.add_generation_prompt = prompts;
    input.now_unix_seconds = 0;
    // This one prints the past as it was only where it thinks.
    const ChatJson thinks = {{"thinking", GetParam().syntax == ToolSyntax::kDeepSeekV32}};
    input.extra = &thinks;
    const auto prompt = template_->Render(input);
    EXPECT_TRUE(prompt.ok()) << prompt.status().ToString();
    return prompt.ok() ? prompt->text : "";
  }

  static ChatJson Question() { return ChatJson::array({{{"role", "user"}, {"content", "Wie wird es?"}}}); }
  // OpenAI's shape, as clients send back what they got.
  static ChatJson Assistant(const ParsedAnswer& answer) {
    ChatJson message = {{"role", "assistant"}, {"content", nullptr}};
    if (!answer.content.empty()) message["content"] = answer.content;
    if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
    for (const auto& [name, arguments] : answer.calls) {
      message["tool_calls"].push_back(
          {{"id", "call00001"}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}});
    }
    return message;
  }
  AnswerFormat Format() const {
    return {.space = caps().reasoning, .tools = caps().tool_syntax, .tool_names = {"get_weather"}};
  }

  std::unique_ptr<ChatTemplate> template_;
};

TEST_P(AnswerTemplateTest, SyntaxIsFound) {
  EXPECT_EQ(ToolSyntaxName(caps().tool_syntax), ToolSyntaxName(GetParam().syntax));
  EXPECT_EQ(caps().call_open, GetParam().open);
  EXPECT_EQ(caps().call_middle, GetParam().middle);
}

TEST_P(AnswerTemplateTest, PrintedCallsAreReadAndPrintedAgain) {
  for (size_t num_calls = 1; num_calls <= GetParam().most_calls; ++num_calls) {
    ParsedAnswer said;
    for (size_t i = 0; i < num_calls; ++i) said.calls.emplace_back("get_weather", kArguments);
    ChatJson messages = Question();
    const std::string question = Render(messages, true);
    messages.push_back(Assistant(said));
    const std::string printed = Render(messages, false);
    // From behind the prompt, or where it has no place in the past, from behind the question.
    size_t begin = printed.starts_with(question) ? question.size() : printed.find("<｜tool▁calls▁begin｜>");
    begin = std::min(begin, printed.find("[TOOL_CALLS]"));
    ASSERT_LT(begin, printed.size()) << printed;
    std::string answer = printed.substr(begin);
    for (const char* end : {"<|im_end|>\n", "<|eot_id|>", "<｜end▁of▁sentence｜>", "</s>"}) {
      if (answer.ends_with(end)) answer.resize(answer.size() - std::string_view(end).size());
    }
    for (size_t cut = 0; cut <= answer.size(); ++cut) {
      const std::string_view text = answer;
      AnswerFormat format = Format();
      format.in_reasoning = question.ends_with("<think>") && begin == question.size();
      const ParsedAnswer parsed = ParseAnswer(format, {text.substr(0, cut), text.substr(cut)});
      ASSERT_EQ(parsed.content, "") << answer;
      ASSERT_EQ(parsed.calls.size(), num_calls) << answer;
      ChatJson again = Question();
      again.push_back(Assistant(parsed));
      ASSERT_EQ(Render(again, false), printed) << "cut at " << cut;
    }
  }
}

// What is generated behind a prompt, with reasoning and content where the template keeps them. The other templates
// print past turns differently from what was generated.
TEST_P(AnswerTemplateTest, NextPromptBeginsWithThisOneAndItsAnswer) {
  const bool thinks = caps().reasoning.printed;
  const std::string prompt = Render(Question(), true);
  const ToolSyntax syntax = GetParam().syntax;
  const bool text_too = syntax == ToolSyntax::kHermes || syntax == ToolSyntax::kDeepSeekV31 || syntax == ToolSyntax::kDeepSeekV32;
  std::string answer;
  const bool opened = prompt.ends_with("<think>");
  if (thinks) answer = opened ? " Hm,\nwell. </think>" : "<think>\nHm, well.\n</think>\n\n";
  if (text_too) answer += "I look.";
  if (text_too && caps().tool_syntax == ToolSyntax::kHermes) answer += "\n";
  const bool dsml = caps().tool_syntax == ToolSyntax::kDeepSeekV32;
  answer += caps().call_open + "get_weather" + caps().call_middle;
  answer += dsml ? "<｜DSML｜parameter name=\"city\" string=\"true\">Bern</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"
                 : "{\"city\": \"Bern\"}";
  if (caps().tool_syntax == ToolSyntax::kHermes) answer += "}\n</tool_call>";
  if (syntax == ToolSyntax::kLlama) answer += "}";
  if (syntax == ToolSyntax::kMistral) answer += "}]";
  if (caps().tool_syntax == ToolSyntax::kDeepSeekV3) answer += "\n```<｜tool▁call▁end｜>";
  if (caps().tool_syntax == ToolSyntax::kDeepSeekV31) answer += "<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  AnswerFormat format = Format();
  format.in_reasoning = opened;
  const ParsedAnswer parsed = ParseAnswer(format, {answer});
  EXPECT_EQ(parsed.reasoning.empty(), !thinks);
  ASSERT_EQ(parsed.calls, (std::vector<std::pair<std::string, std::string>>{{"get_weather", "{\"city\": \"Bern\"}"}})) << answer;
  EXPECT_EQ(parsed.content, text_too ? "I look." : "");
  ChatJson messages = Question();
  messages.push_back(Assistant(parsed));
  messages.push_back({{"role", "tool"}, {"tool_call_id", "call00001"}, {"name", "get_weather"}, {"content", "sunny"}});
  const std::string next = Render(messages, true);
  EXPECT_EQ(next.starts_with(prompt + answer), GetParam().continues) << prompt + answer << "\n--- and then ---\n" << next;
}

INSTANTIATE_TEST_SUITE_P(Templates, AnswerTemplateTest, testing::ValuesIn(kTemplates), [](const auto& each) {
  std::string name;
  for (const char c : std::string_view(each.param.file)) {
    if (std::isalnum(static_cast<unsigned char>(c))) name += c;
  }
  return name;
});

TEST(AnswerTemplate, ReasoningIsFound) {
  const auto qwen = ParseOrDie(ReadChatFile("templates/Qwen-Qwen3-0.6B.jinja"));
  EXPECT_TRUE(qwen->caps().reasoning.printed);
  EXPECT_EQ(qwen->caps().reasoning.after_open, "\n");
  EXPECT_EQ(qwen->caps().reasoning.before_close, "\n");
  EXPECT_EQ(qwen->caps().reasoning.after_close, "\n\n");
  const auto v32 = ParseOrDie(ReadChatFile("templates/deepseek-ai-DeepSeek-V3.2.jinja"));
  EXPECT_TRUE(v32->caps().reasoning.printed);
  EXPECT_EQ(v32->caps().reasoning.after_open + v32->caps().reasoning.before_close + v32->caps().reasoning.after_close, "");
  EXPECT_FALSE(ParseOrDie(ReadChatFile("templates/deepseek-ai-DeepSeek-V3.1.jinja"))->caps().reasoning.printed);
}

TEST(AnswerTemplate, TemplatesWithoutToolsHaveNoSyntax) {
  for (const char* file : {"chatml.jinja", "HuggingFaceTB-SmolLM2-135M-Instruct.jinja", "mistral-v1.jinja", "meta-llama-Llama-3-8B.jinja"}) {
    EXPECT_EQ(ParseOrDie(ReadChatFile(std::string("templates/") + file))->caps().tool_syntax, ToolSyntax::kNone) << file;
  }
}

TEST(ToolPrompt, CallsAreReadAsTheyAreWritten) {
  for (const ToolSyntax syntax : AllToolSyntaxes()) {
    const auto parsed = ParseAnswer({.tools = syntax, .tool_names = {"f"}}, {WriteToolCall(syntax, "f", R"({"a": 1})")});
    ASSERT_EQ(parsed.calls.size(), 1u) << ToolSyntaxName(syntax);
    EXPECT_EQ(parsed.calls[0].first, "f");
    EXPECT_EQ(parsed.calls[0].second, R"({"a": 1})");
    EXPECT_EQ(parsed.content, "");
    EXPECT_NE(DescribeTools(syntax, ChatJson::parse(kTools)).find("get_weather"), std::string::npos);
  }
}

}  // namespace
}  // namespace cachalot
