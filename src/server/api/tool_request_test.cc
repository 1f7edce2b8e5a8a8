// Requests with tools and with reasoning, against a model that has only its tokenizer and a borrowed template.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "server/api/chat_request.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {
namespace {

using testing::HasSubstr;

constexpr const char* kTools = R"([{"type":"function","function":{"name":"get_weather","parameters":{"type":"object"}}},
    {"type":"function","function":{"name":"get_time"}}])";

class ToolRequestTest : public testing::Test {
 protected:
  void Open(const std::string& template_file) {
    ModelOptions options;
    options.dummy = "tiny-llama";
    Result<ModelBundle> bundle = PlanModel(options);
    ASSERT_TRUE(bundle.ok()) << bundle.status().ToString();
    bundle_ = std::move(*bundle);
    facts_.names = {"tiny"};
    facts_.vocab_size = bundle_.tokenizer->vocab_size();
    facts_.max_context = 4096;
    if (template_file.empty()) return;
    const auto text = ReadTextFile(CACHALOT_SOURCE_DIR "/tests/data/chat/templates/" + template_file, 1 << 20);
    ASSERT_TRUE(text.ok());
    auto parsed = ChatTemplate::Parse(*text, "<s>", "</s>");
    ASSERT_TRUE(parsed.ok());
    bundle_.chat_template = std::move(*parsed);
    bundle_.has_own_template = true;
    bundle_.tool_syntax = bundle_.chat_template->caps().tool_syntax;
  }
  std::optional<ApiError> Parse(const std::string& more, GenerationParams* params) {
    ChatJson body;
    if (auto error = ParseBody(R"({"messages":[{"role":"user","content":"taneba"}])" + more + "}", &body)) return error;
    *params = {};
    return ParseChatRequest(body, bundle_, facts_, params);
  }
  GenerationParams Good(const std::string& more) {
    GenerationParams params;
    const auto error = Parse(more, &params);
    EXPECT_FALSE(error.has_value()) << more << ": " << error->message;
    return params;
  }
  std::string PromptOf(const GenerationParams& params) { return bundle_.tokenizer->Decode(params.prompts[0].ids, false); }
  static std::string WithTools(const std::string& more = "") { return std::string(",\"tools\":") + kTools + more; }

  ModelBundle bundle_;
  ModelFacts facts_;
};

TEST_F(ToolRequestTest, TheTemplateShowsThem) {
  Open("Qwen-Qwen2.5-7B-Instruct.jinja");
  const GenerationParams params = Good(WithTools());
  EXPECT_EQ(params.format.tools, ToolSyntax::kHermes);
  EXPECT_EQ(params.format.tool_names, (std::vector<std::string>{"get_weather", "get_time"}));
  EXPECT_TRUE(params.parallel_tool_calls);
  EXPECT_EQ(params.forced_text, "");
  EXPECT_THAT(PromptOf(params), HasSubstr("get_weather"));
  EXPECT_FALSE(Good(WithTools(",\"parallel_tool_calls\":false")).parallel_tool_calls);
}

TEST_F(ToolRequestTest, NoneLeavesThemOut) {
  Open("Qwen-Qwen2.5-7B-Instruct.jinja");
  const GenerationParams params = Good(WithTools(",\"tool_choice\":\"none\""));
  EXPECT_EQ(params.format.tools, ToolSyntax::kNone);
  EXPECT_EQ(PromptOf(params), PromptOf(Good("")));
}

TEST_F(ToolRequestTest, ACallIsForced) {
  Open("Qwen-Qwen2.5-7B-Instruct.jinja");
  const std::string plain = PromptOf(Good(WithTools()));
  const GenerationParams any = Good(WithTools(",\"tool_choice\":\"required\""));
  EXPECT_EQ(any.forced_text, "<tool_call>\n{\"name\": \"");
  EXPECT_EQ(PromptOf(any), plain + any.forced_text);
  const GenerationParams named = Good(WithTools(R"(,"tool_choice":{"type":"function","function":{"name":"get_time"}})"));
  EXPECT_EQ(named.forced_text, "<tool_call>\n{\"name\": \"get_time\", \"arguments\":");
  EXPECT_EQ(PromptOf(named), plain + named.forced_text);
}

// Behind an open <think> it waits for the end of the reasoning.
TEST_F(ToolRequestTest, ACallIsForcedBehindTheReasoning) {
  Open("deepseek-ai-DeepSeek-V3.1.jinja");
  const GenerationParams params =
      Good(WithTools(R"(,"tool_choice":"required","chat_template_kwargs":{"thinking":true},"reasoning_budget":7)"));
  EXPECT_TRUE(params.format.in_reasoning);
  EXPECT_EQ(params.forced_text, "");
  EXPECT_EQ(bundle_.tokenizer->Decode(params.reasoning.then_ids, false), "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>");
  EXPECT_EQ(params.reasoning.budget, 7);
  EXPECT_EQ(bundle_.tokenizer->Decode(params.reasoning.close_ids, false), "\n</think>\n\n");
  EXPECT_TRUE(params.reasoning.inside);
}

// This template says nothing of tools, so the system message does.
TEST_F(ToolRequestTest, ToolsAreDescribedWhereTheTemplateDoesNot) {
  Open("deepseek-ai-DeepSeek-V3.1.jinja");
  const std::string prompt = PromptOf(Good(WithTools()));
  EXPECT_THAT(prompt, HasSubstr("get_weather"));
  EXPECT_THAT(prompt, HasSubstr("<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>"));
}

TEST_F(ToolRequestTest, WithoutASyntaxThereAreNoTools) {
  Open("");
  GenerationParams params;
  auto error = Parse(WithTools(), &params);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->param, "tools");
  EXPECT_THAT(error->message, HasSubstr("--tool-call-parser"));
  bundle_.tool_syntax = ToolSyntax::kHermes;
  EXPECT_THAT(PromptOf(Good(WithTools())), HasSubstr("get_weather"));
  // Calls of the past become text, since this template would leave them out.
  ChatJson body = {{"messages", ChatJson::parse(R"([{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":
      [{"id":"x","type":"function","function":{"name":"f","arguments":"{\"b\": 1}"}}]},{"role":"tool","tool_call_id":"x","content":"c"}])")}};
  RenderedPrompt prompt;
  EXPECT_FALSE(RenderChat(body, bundle_, &prompt).has_value());
  EXPECT_THAT(prompt.text, HasSubstr("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1}}\n</tool_call>"));
}

TEST_F(ToolRequestTest, ReasoningFields) {
  Open("Qwen-Qwen3-0.6B.jinja");
  EXPECT_EQ(Good("").reasoning.budget, -1);
  facts_.reasoning_budget = 9;
  EXPECT_EQ(Good("").reasoning.budget, 9);
  EXPECT_EQ(Good(R"(,"thinking_budget":3)").reasoning.budget, 3);
  EXPECT_EQ(Good(R"(,"reasoning_budget":-1)").reasoning.budget, -1);
  EXPECT_EQ(bundle_.tokenizer->Decode(Good("").reasoning.close_ids, false), "\n</think>\n\n");
  EXPECT_THAT(PromptOf(Good(R"(,"enable_thinking":false)")), HasSubstr("<think>\n\n</think>"));
  EXPECT_THAT(PromptOf(Good(R"(,"chat_template_kwargs":{"enable_thinking":false})")), HasSubstr("<think>\n\n</think>"));
  EXPECT_FALSE(Good(R"(,"separate_reasoning":false)").format.split_reasoning);
}

TEST_F(ToolRequestTest, WrongFields) {
  Open("Qwen-Qwen2.5-7B-Instruct.jinja");
  struct Case {
    std::string fields, param, what;
  };
  const std::vector<Case> cases = {
      {R"(,"tools":{})", "tools", "list"},
      {R"(,"tools":[7])", "tools[0]", "7"},
      {R"(,"tools":[{"type":"web"}])", "tools[0].type", "web"},
      {R"(,"tools":[{"type":"function"}])", "tools[0].function", "object"},
      {R"(,"tools":[{"type":"function","function":{}}])", "tools[0].function.name", "missing"},
      {R"(,"tools":[{"type":"function","function":{"name":"a\"b"}}])", "tools[0].function.name", "quotes"},
      {R"(,"tools":[{"type":"function","function":{"name":"a","parameters":[]}}])", "tools[0].function.parameters", "list"},
      {R"(,"tool_choice":"required")", "tool_choice", "without tools"},
      {WithTools(R"(,"tool_choice":"maybe")"), "tool_choice", "maybe"},
      {WithTools(R"(,"tool_choice":{"type":"function","function":{"name":"x"}})"), "tool_choice", "not among"},
      {WithTools(R"(,"parallel_tool_calls":1)"), "parallel_tool_calls", "1"},
      {R"(,"functions":[{"name":"a"}])", "functions", "use tools"},
      {R"(,"reasoning_budget":-2)", "reasoning_budget", "-2"},
      {R"(,"enable_thinking":"no")", "enable_thinking", "no"},
  };
  for (const auto& c : cases) {
    GenerationParams params;
    const auto error = Parse(c.fields, &params);
    ASSERT_TRUE(error.has_value()) << c.fields;
    EXPECT_EQ(error->status, 400);
    EXPECT_EQ(error->param, c.param) << c.fields;
    EXPECT_THAT(error->message, HasSubstr(c.what)) << c.fields;
  }
  for (const char* calls : {"7", "[7]", "[{}]", R"([{"function":{}}])", R"([{"function":{"name":"f","arguments":[]}}])"}) {
    ChatJson body = {{"messages", ChatJson::parse(R"([{"role":"user","content":"a"},{"role":"assistant","tool_calls":)" + std::string(calls) + "}]")}};
    RenderedPrompt prompt;
    const auto error = RenderChat(body, bundle_, &prompt);
    ASSERT_TRUE(error.has_value()) << calls;
    EXPECT_THAT(error->param, HasSubstr("messages[1].tool_calls")) << calls;
  }
}

}  // namespace
}  // namespace cachalot
