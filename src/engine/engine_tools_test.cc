// Tool calls through the engine, by a model with random weights: a call that must be made is one, whatever the model would
// have written, and the next turn finds the last one's prompt and answer in the cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "engine/answer_setup.h"
#include "engine/engine.h"
#include "engine/model_bundle.h"
#include "formats/text.h"
#include "tokenizer/chat/chat_template.h"
#include "tokenizer/chat/tool_prompt.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {
namespace {

constexpr int32_t kBlock = 16;

struct Call {
  std::string name;
  std::string arguments;
};

class EngineToolsTest : public testing::Test {
 protected:
  void Open(const std::string& name, DraftKind drafts = DraftKind::kNone) {
    ModelOptions options;
    options.dummy = "tiny-deepseek-v3";
    options.num_threads = 1;
    options.max_seqs = 2;
    options.context = 2560;
    options.max_step_tokens = 256;
    options.block_tokens = kBlock;
    options.drafts = drafts;
    auto bundle = OpenModel(options);
    ASSERT_TRUE(bundle.ok()) << bundle.status().ToString();
    bundle_ = std::move(bundle).value();
    const auto source = ReadTextFile(std::string(CACHALOT_SOURCE_DIR) + "/tests/data/chat/templates/" + name, 1 << 20);
    ASSERT_TRUE(source.ok()) << source.status().ToString();
    auto parsed = ChatTemplate::Parse(*source, "<s>", "</s>");
    ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
    bundle_.chat_template = std::move(parsed).value();
    bundle_.tool_syntax = bundle_.chat_template->caps().tool_syntax;
    auto engine = Engine::Create(bundle_.runtime.get(), bundle_.tokenizer.get(), {.drafts = drafts});
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(engine).value();
  }

  std::vector<int32_t> Render(const ChatJson& messages) {
    const auto prompt = bundle_.chat_template->Render({.messages = &messages, .tools = &tools_, .extra = nullptr, .now_unix_seconds = 0});
    EXPECT_TRUE(prompt.ok()) << prompt.status().ToString();
    return *bundle_.tokenizer->Encode(prompt->text, {.add_special = false, .user_ranges = prompt->user_ranges});
  }

  struct Run {
    std::string text;
    std::vector<int32_t> tokens;
    int32_t num_cached = 0;
    FinishReason reason = FinishReason::kError;
  };
  Run Generate(Request request) {
    Run run;
    auto id = engine_->Submit(std::move(request), [&run](const RequestOutput& output) {
      EXPECT_TRUE(output.error.ok()) << output.error.ToString();
      run.text += output.text;
      run.tokens.insert(run.tokens.end(), output.token_ids.begin(), output.token_ids.end());
      run.num_cached = std::max(run.num_cached, output.num_cached_tokens);
      if (output.finished) run.reason = output.finish_reason;
    });
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    EXPECT_TRUE(engine_->RunUntilIdle().ok());
    return run;
  }

  std::vector<Call> Calls(const std::string& text) {
    AnswerFormat format = AnswerFormatOf(bundle_, false, true);
    format.tool_names = names_;
    AnswerParser parser(format);
    std::vector<AnswerEvent> events;
    parser.Push(text, &events);
    parser.Finish(&events);
    std::vector<Call> calls;
    for (const AnswerEvent& event : events) {
      if (event.part == AnswerEvent::kCallName) calls.push_back({event.text, ""});
      if (event.part == AnswerEvent::kCallArguments) calls.back().arguments += event.text;
    }
    return calls;
  }

  ModelBundle bundle_;
  std::unique_ptr<Engine> engine_;
  const std::vector<std::string> names_ = {"get_weather", "get_time"};
  const ChatJson tools_ = ChatJson::parse(R"([
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}])");
  const ChatJson question_ = ChatJson::parse(R"([{"role": "user", "content": "How is the weather in Bern?"}])");
};

TEST_F(EngineToolsTest, ACallThatMustBeMadeIsMade) {
  for (const char* name : {"Qwen-Qwen2.5-7B-Instruct.jinja", "meta-llama-Llama-3.1-8B-Instruct.jinja", "mistral-v3.jinja",
                           "mistral-nemo.jinja", "deepseek-ai-DeepSeek-V3.jinja",
                           "deepseek-ai-DeepSeek-V3.1.jinja"}) {
    for (const DraftKind drafts : {DraftKind::kNone, DraftKind::kNgram}) {
      Open(name, drafts);
      if (HasFatalFailure()) return;
      for (const std::string& named : {std::string(), std::string("get_time")}) {
        for (uint64_t seed = 0; seed < 6; ++seed) {
          const auto opening = OpenCall(bundle_, named, names_);
          ASSERT_TRUE(opening.ok()) << opening.status().ToString();
          Request request;
          request.prompt_ids = Render(question_);
          request.prompt_ids.insert(request.prompt_ids.end(), opening->ids.begin(), opening->ids.end());
          request.call = opening->rule;
          request.call.in_prompt = true;
          request.shown_ids = ShownIdsOf(bundle_, AnswerFormatOf(bundle_, false, true));
          request.max_tokens = 60;
          request.sampling.temperature = 1.0f;
          request.sampling.seed = seed;
          // Some end as soon as they can.
          if (seed % 2 == 0) request.sampling.logit_bias = {{2, 50.0f}}, request.stop_ids = {2};
          const Run run = Generate(request);
          const std::vector<Call> calls = Calls(opening->text + run.text);
          ASSERT_GE(calls.size(), 1u) << name << ": " << opening->text << run.text;
          EXPECT_TRUE(std::find(names_.begin(), names_.end(), calls[0].name) != names_.end()) << calls[0].name;
          if (!named.empty()) {
            EXPECT_EQ(calls[0].name, named);
          }
          const auto arguments = nlohmann::json::parse(calls[0].arguments, nullptr, false);
          EXPECT_TRUE(arguments.is_object()) << name << ": " << opening->text << run.text;
        }
      }
    }
  }
}

// The answer is put there token by token, as a model would write it.
TEST_F(EngineToolsTest, TheNextTurnFindsPromptAndAnswerInTheCache) {
  for (const char* name : {"Qwen-Qwen2.5-7B-Instruct.jinja", "meta-llama-Llama-3.1-8B-Instruct.jinja"}) {
    Open(name);
    if (HasFatalFailure()) return;
    const ChatTemplateCaps& caps = bundle_.chat_template->caps();
    const std::string arguments = R"({"city": "Bern", "days": [1, 2]})";
    const std::string written = WriteToolCall(bundle_.tool_syntax, "get_weather", arguments);
    ASSERT_TRUE(written.starts_with(caps.call_open)) << written;
    Request first;
    first.prompt_ids = Render(question_);
    const std::vector<int32_t> answer = *bundle_.tokenizer->Encode(written, {.add_special = false});
    first.reasoning = {.inside = true, .budget = 0, .close_ids = answer, .then_ids = {}};
    first.shown_ids = ShownIdsOf(bundle_, AnswerFormatOf(bundle_, false, true));
    first.max_tokens = static_cast<int32_t>(answer.size()) + 1;  // and the end of the turn
    const Run run = Generate(first);
    ASSERT_TRUE(run.text.starts_with(written)) << run.text;
    const std::vector<Call> calls = Calls(written);
    ASSERT_EQ(calls.size(), 1u);

    ChatJson messages = question_;
    messages.push_back({{"role", "assistant"},
                        {"content", ""},
                        {"tool_calls", {{{"id", "call_1"}, {"type", "function"},
                                         {"function", {{"name", calls[0].name}, {"arguments", calls[0].arguments}}}}}}});
    messages.push_back({{"role", "tool"}, {"tool_call_id", "call_1"}, {"content", "12 degrees"}});
    Request second;
    second.prompt_ids = Render(messages);
    second.max_tokens = 1;
    std::vector<int32_t> said = first.prompt_ids;
    said.insert(said.end(), answer.begin(), answer.end());
    ASSERT_GT(second.prompt_ids.size(), said.size());
    EXPECT_TRUE(std::equal(said.begin(), said.end(), second.prompt_ids.begin())) << name << ": other tokens";
    EXPECT_GE(Generate(second).num_cached, static_cast<int32_t>(said.size()) / kBlock * kBlock) << name;
  }
}

}  // namespace
}  // namespace cachalot
