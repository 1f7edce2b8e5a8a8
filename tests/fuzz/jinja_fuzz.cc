// Any bytes as a chat template, rendered over a conversation within tight limits: a prompt or one line of
// error, and never a byte of the request outside the ranges that say so.
#include <cstdint>
#include <nlohmann/json.hpp>

#include "fuzz/one_line.h"
#include "tokenizer/chat/chat_template.h"

namespace {

using cachalot::ChatJson;

// A character of the private use area stands in every text of the request and nowhere else.
constexpr std::string_view kMark = "\xee\x80\x80";

const ChatJson& Messages() {
  static const ChatJson messages = ChatJson::parse(R"([
    {"role": "system\ue000", "content": "\ue000Be kind."},
    {"role": "user", "content": " Hé\ue000llo, <b>\n\tworld\ue000 "},
    {"role": "assistant", "content": null, "tool_calls": [{"id": "call12345", "type": "function",
      "function": {"name": "f\ue000", "arguments": {"a\ue000": [1, 2.5, true, null, "x\ue000"], "b": {}}}}]},
    {"role": "tool", "tool_call_id": "call12345", "content": "{\"t\": \"\ue000\"}"},
    {"role": "assistant", "content": "<think>\ue000</think>\ue000"}])");
  return messages;
}

// Templates that can spell the mark themselves prove nothing.
bool CanSpellMark(std::string_view source) {
  for (const std::string_view spelling :
       {kMark, std::string_view("e000"), std::string_view("E000"), std::string_view("5734")}) {
    if (source.find(spelling) != source.npos) return true;
  }
  return false;
}

void CheckPrompt(const cachalot::RenderedPrompt& prompt, std::string_view source) {
  int64_t last = -1;
  for (const auto& [begin, end] : prompt.user_ranges) {
    CHECK(begin > last && end > begin && end <= static_cast<int64_t>(prompt.text.size()))
        << begin << ' ' << end;
    last = end;
  }
  if (CanSpellMark(source)) return;
  size_t range = 0;
  for (size_t at = prompt.text.find(kMark); at != std::string::npos; at = prompt.text.find(kMark, at + 1)) {
    const auto begin = static_cast<int64_t>(at);
    const auto& ranges = prompt.user_ranges;
    while (range < ranges.size() && ranges[range].second <= begin) ++range;
    CHECK(range < ranges.size() && ranges[range].first <= begin &&
          begin + static_cast<int64_t>(kMark.size()) <= ranges[range].second)
        << "a text of the request at byte " << at << " is not marked";
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  cachalot::ChatTemplateLimits limits;
  limits.max_source_bytes = 1 << 16;
  limits.max_steps = 100'000;
  limits.max_output_bytes = 1 << 20;
  limits.max_memory_bytes = 8 << 20;
  auto parsed = cachalot::ChatTemplate::Parse(source, "<s>", "</s>", limits);
  if (!parsed.ok()) {
    cachalot::fuzz::CheckOneLine(parsed.status(), "chat template: ");
    return 0;
  }
  static const ChatJson tools = ChatJson::parse(
      R"([{"type":"function","function":{"name":"g\ue000","parameters":{"type":"object","properties":{}}}}])");
  for (const bool adapt : {false, true}) {
    cachalot::ChatInput input;
    input.messages = &Messages();
    input.tools = adapt ? &tools : nullptr;
    input.now_unix_seconds = 0;
    input.adapt_messages = adapt;
    const auto prompt = (*parsed)->Render(input);
    if (prompt.ok()) {
      CheckPrompt(*prompt, source);
    } else {
      cachalot::fuzz::CheckOneLine(prompt.status(), "chat template: ");
    }
  }
  return 0;
}
