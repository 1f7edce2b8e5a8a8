// Chat templates: the Jinja text that a model ships, rendered over a conversation into a prompt.
// Invariant: the output equals what Python's jinja2 gives with Hugging Face's settings, and every byte of it
// that came from the request (not from the template, bos or eos) lies in `user_ranges`, so that it never
// becomes a control token.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tokenizer/chat/answer_parser.h"

namespace cachalot {

// Ordered, because a template prints a tool's schema in the order in which the caller wrote it (and models
// were trained on that); nlohmann::json would sort the keys.
using ChatJson = nlohmann::ordered_json;
// Parses a request. Ordered objects look keys up one by one, so an object of more than 4096 keys is an error.
Result<ChatJson> ParseChatJson(std::string_view text);

struct ChatInput {
  const ChatJson* messages = nullptr;  // [{"role": …, "content": …}, …], required
  const ChatJson* tools = nullptr;  // OpenAI's [{"type": "function", "function": {…}}, …]; null: no tools
  const ChatJson* documents = nullptr;
  bool add_generation_prompt = true;
  const ChatJson* extra = nullptr;  // chat_template_kwargs: {"enable_thinking": false}; null: none
  // What strftime_now() shows, in local time; the clock when not set.
  std::optional<int64_t> now_unix_seconds;

  // Bends OpenAI-shaped messages to what this template can read (see ChatTemplateCaps): text parts are joined
  // with newlines, a missing content becomes null and null becomes "" where null would fail, tool-call
  // arguments become an object or a string, empty lists of tools and tool calls vanish. Off: rendered as is.
  bool adapt_messages = true;
};

struct RenderedPrompt {
  std::string text;
  std::vector<std::pair<int64_t, int64_t>> user_ranges;  // byte ranges [begin, end): sorted, disjoint, merged
};

// Whether the template's own text after the last of the request's leaves a <think> open: then the model's
// answer begins inside its reasoning.
bool EndsInsideThink(const RenderedPrompt& prompt);

// What a template may cost; beyond it Parse or Render return kExhausted.
struct ChatTemplateLimits {
  int64_t max_source_bytes = 1 << 20;
  int64_t max_steps = 20'000'000;  // evaluated nodes, plus one for every 64 bytes or so that they touch
  int64_t max_output_bytes = 64 << 20;
  int64_t max_memory_bytes = 256 << 20;  // all values of one render together
  int max_depth = 200;                   // of nested expressions, blocks, macro calls and values
};

// Which form a tool call's "arguments" must have for the template to print them as JSON.
enum class ToolArgumentsForm { kEither, kString, kObject };

// What a template can do, found by rendering small probes when it is parsed.
struct ChatTemplateCaps {
  bool supports_system = false;           // a system message's text reaches the prompt
  bool supports_tools = false;            // a tool's name reaches the prompt
  bool supports_tool_calls = false;       // an assistant's tool call reaches the prompt
  bool supports_tool_results = false;     // a "tool" message's text reaches the prompt
  bool mentions_enable_thinking = false;  // reads the variable `enable_thinking` or `thinking`
  bool opens_think = false;               // by default the generation prompt ends inside <think>
  bool reads_content_parts = false;       // takes a list of {"type": "text", …} parts itself
  bool needs_text_content = false;        // fails on an assistant's tool call whose content is null
  ToolArgumentsForm tool_arguments = ToolArgumentsForm::kEither;
  // How the template prints a call, found by reading one that it printed: what stands before the first call's
  // name, and between name and arguments.
  ToolSyntax tool_syntax = ToolSyntax::kNone;
  std::string call_open, call_middle;
  ReasoningSpace reasoning;  // how it prints an assistant's reasoning_content
};

namespace jinja {
class Program;
}

// Immutable after Parse; Render may be called from many threads at once.
class ChatTemplate {
 public:
  // An empty bos_text or eos_text leaves that variable undefined, as Hugging Face does for a tokenizer
  // without it.
  static Result<std::unique_ptr<ChatTemplate>> Parse(std::string_view source, std::string_view bos_text,
                                                     std::string_view eos_text,
                                                     ChatTemplateLimits limits = {});
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  Result<RenderedPrompt> Render(const ChatInput& input) const;
  const ChatTemplateCaps& caps() const { return caps_; }

 private:
  ChatTemplate();

  std::unique_ptr<const jinja::Program> program_;
  std::string bos_text_;
  std::string eos_text_;
  ChatTemplateLimits limits_;
  ChatTemplateCaps caps_;
};

// The ChatML template, used when a model has none.
std::string_view ChatMlTemplate();

}  // namespace cachalot
