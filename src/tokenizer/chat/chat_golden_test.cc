// Against Python's jinja2: tests/data/chat/*.json were made by tools/make_chat_goldens.py.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <time.h>

#include "base/file.h"
#include "tokenizer/chat/chat_testing.h"

namespace cachalot {
namespace {

class ChatGolden : public ::testing::Test {
 protected:
  // strftime_now shows local time; the goldens were made in UTC.
  static void SetUpTestSuite() {
    ::setenv("TZ", "UTC", 1);
    ::tzset();
  }

  static std::string Show(const Result<RenderedPrompt>& prompt) {
    return prompt.ok() ? prompt->text : prompt.status().ToString();
  }
};

// Sanitizers are slow: they see a part of the snippets.
#ifdef CACHALOT_SANITIZED
constexpr size_t kStride = 10;
#else
constexpr size_t kStride = 1;
#endif

// jinja2 gives a result where ours says that the language ends here: numbers without bounds, complex numbers.
bool IsBeyondUs(const Status& status) {
  return status.code() == StatusCode::kUnsupported;
}

TEST_F(ChatGolden, SnippetsEqualJinja2) {
  const ChatJson golden = ChatJson::parse(ReadChatFile("snippets.json"));
  const std::string bos = golden["bos"];
  const std::string eos = golden["eos"];
  int beyond = 0;
  int shown = 0;
  const ChatJson& snippets = golden["snippets"];
  for (size_t i = 0; i < snippets.size(); i += kStride) {
    const ChatJson& snippet = snippets[i];
    const std::string source = snippet[0];
    Result<RenderedPrompt> prompt = InvalidArgument("");
    Result<std::unique_ptr<ChatTemplate>> parsed = ChatTemplate::Parse(source, bos, eos);
    if (parsed.ok()) {
      ChatInput input;
      input.messages = &golden["messages"];
      input.extra = &golden["context"];
      input.now_unix_seconds = golden["now"].get<int64_t>();
      input.adapt_messages = false;
      prompt = (*parsed)->Render(input);
    } else {
      prompt = parsed.status();
    }
    if (!prompt.ok() && IsBeyondUs(prompt.status())) {
      ++beyond;
      continue;
    }
    const bool as_expected = snippet[1].is_null()
                                 ? !prompt.ok()
                                 : prompt.ok() && prompt->text == snippet[1].get_ref<const std::string&>();
    if (!as_expected && ++shown < 20) {
      ADD_FAILURE() << source << "\n  jinja2: " << snippet[1].dump() << "\n  ours:   " << Show(prompt);
    }
    EXPECT_TRUE(!prompt.ok() || RangesAreSound(*prompt)) << source;
  }
  EXPECT_EQ(shown, 0);
  EXPECT_GT(snippets.size(), 10'000u);
  EXPECT_LT(beyond, 40);
}

// A character of the private use area at the end of every text of the request, and as a key of every object.
constexpr std::string_view kMark = "\xee\x80\x80";

void AddMarks(ChatJson* json) {
  if (json->is_string()) {
    *json = json->get<std::string>().append(kMark);
  } else if (json->is_structured()) {
    for (ChatJson& item : *json) AddMarks(&item);
    if (json->is_object()) (*json)[fmt::format("k{}", kMark)] = "v";
  }
}

// The same snippets over marked values: wherever a mark comes out, it lies in the request's ranges.
TEST_F(ChatGolden, NoSnippetLosesTheRequestsMarks) {
  const ChatJson golden = ChatJson::parse(ReadChatFile("snippets.json"));
  ChatJson context = golden["context"];
  ChatJson messages = golden["messages"];
  for (ChatJson& value : context) AddMarks(&value);
  for (ChatJson& value : messages) AddMarks(&value);
  const ChatJson& snippets = golden["snippets"];
  int with_marks = 0;
  for (size_t i = 0; i < snippets.size(); i += 3 * kStride) {
    const Result<RenderedPrompt> prompt = RenderWith(snippets[i][0].get<std::string>(), messages, context);
    if (!prompt.ok()) continue;
    const std::string user = UserText(*prompt);
    const auto marks = [](std::string_view text) {
      int n = 0;
      for (size_t at = text.find(kMark); at != text.npos; at = text.find(kMark, at + 1)) ++n;
      return n;
    };
    EXPECT_EQ(marks(user), marks(prompt->text)) << snippets[i][0];
    with_marks += marks(user) > 0;
  }
  EXPECT_GT(with_marks, static_cast<int>(100 / kStride));
}

TEST_F(ChatGolden, ChatsEqualJinja2) {
  const ChatJson golden = ChatJson::parse(ReadChatFile("chats.json"));
  int compared = 0;
  for (const auto& [name, outputs] : golden["outputs"].items()) {
    Result<std::unique_ptr<ChatTemplate>> parsed =
        ChatTemplate::Parse(ReadChatFile("templates/" + name + ".jinja"), golden["bos"].get<std::string>(),
                            golden["eos"].get<std::string>());
    ASSERT_TRUE(parsed.ok()) << name << ": " << parsed.status().ToString();
    for (const auto& [chat_name, expected] : outputs.items()) {
      const ChatJson& chat = golden["chats"][chat_name];
      ChatInput input;
      input.messages = &chat["messages"];
      if (chat.contains("tools") && !chat["tools"].is_null()) input.tools = &chat["tools"];
      if (chat.contains("extra")) input.extra = &chat["extra"];
      input.add_generation_prompt = chat.value("prompt", true);
      input.now_unix_seconds = golden["now"].get<int64_t>();
      input.adapt_messages = false;
      const Result<RenderedPrompt> prompt = (*parsed)->Render(input);
      ++compared;
      ASSERT_EQ(prompt.ok(), !expected.is_null()) << name << " / " << chat_name << ": " << Show(prompt);
      if (!prompt.ok()) continue;
      ASSERT_EQ(prompt->text, expected.get<std::string>()) << name << " / " << chat_name;
      ASSERT_TRUE(RangesAreSound(*prompt)) << name << " / " << chat_name;
    }
  }
  EXPECT_GT(compared, 1000);
}

TEST_F(ChatGolden, TinyDeepSeekV3) {
  const std::string folder = CACHALOT_SOURCE_DIR "/../shared/models/tiny-deepseek-v3/";
  if (!FileExists(folder + "golden.json")) GTEST_SKIP() << "the model is not beside this checkout";
  const Result<std::string> golden_text = ReadTextFile(folder + "golden.json", 64 << 20);
  const Result<std::string> config_text = ReadTextFile(folder + "tokenizer_config.json", 64 << 20);
  ASSERT_TRUE(golden_text.ok() && config_text.ok());
  const ChatJson golden = ChatJson::parse(*golden_text);
  const ChatJson config = ChatJson::parse(*config_text);
  Result<std::unique_ptr<ChatTemplate>> parsed = ChatTemplate::Parse(
      config["chat_template"].get<std::string>(), config["bos_token"]["content"].get<std::string>(),
      config["eos_token"]["content"].get<std::string>());
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  const ChatJson messages = ChatJson::parse(R"([{"role": "user", "content": "What is a compiler?"}])");
  ChatInput input;
  input.messages = &messages;
  const Result<RenderedPrompt> prompt = (*parsed)->Render(input);
  ASSERT_TRUE(prompt.ok()) << prompt.status().ToString();
  EXPECT_EQ(prompt->text, golden["chat"]["prompt"].get<std::string>());
  EXPECT_EQ(UserText(*prompt), "What is a compiler?");
}

}  // namespace
}  // namespace cachalot
