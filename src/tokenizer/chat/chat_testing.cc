#include "tokenizer/chat/chat_testing.h"

#include <gtest/gtest.h>

#include "base/file.h"

namespace cachalot {

std::string ReadChatFile(const std::string& name) {
  const Result<std::string> text = ReadTextFile(CACHALOT_SOURCE_DIR "/tests/data/chat/" + name, 64 << 20);
  EXPECT_TRUE(text.ok()) << text.status().ToString();
  return text.ok() ? *text : std::string();
}

std::unique_ptr<ChatTemplate> ParseOrDie(std::string_view source, ChatTemplateLimits limits) {
  Result<std::unique_ptr<ChatTemplate>> parsed = ChatTemplate::Parse(source, "<s>", "</s>", limits);
  CHECK(parsed.ok()) << parsed.status().ToString();
  return std::move(parsed).value();
}

Result<RenderedPrompt> RenderWith(std::string_view source, const ChatJson& messages, const ChatJson& context,
                                  ChatTemplateLimits limits) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ChatTemplate> parsed,
                   ChatTemplate::Parse(source, "<s>", "</s>", limits));
  ChatInput input;
  input.messages = &messages;
  input.extra = &context;
  input.adapt_messages = false;
  return parsed->Render(input);
}

std::string UserText(const RenderedPrompt& prompt) {
  std::string out;
  for (const auto& [begin, end] : prompt.user_ranges) out += prompt.text.substr(begin, end - begin);
  return out;
}

std::string TrustedText(const RenderedPrompt& prompt) {
  std::string out;
  int64_t at = 0;
  for (const auto& [begin, end] : prompt.user_ranges) {
    out += prompt.text.substr(at, begin - at) + "#";
    at = end;
  }
  return out + prompt.text.substr(at);
}

bool RangesAreSound(const RenderedPrompt& prompt) {
  int64_t last = -1;
  for (const auto& [begin, end] : prompt.user_ranges) {
    if (begin <= last || end <= begin || end > static_cast<int64_t>(prompt.text.size())) return false;
    last = end;
  }
  return true;
}

}  // namespace cachalot
