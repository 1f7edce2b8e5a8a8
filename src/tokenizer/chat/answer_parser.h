// AnswerParser: divides an answer, as it streams, into reasoning, content and tool calls.
// Invariants: the parts, markup included, are the text, byte for byte and in order; how the text was cut into
// pieces changes nothing; a piece costs time in proportion to its size, and no more than kMaxHeldBytes are
// ever held back.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/chat/tool_syntax.h"

namespace cachalot {

// How a template surrounds an assistant's reasoning when it prints it: what was printed so was not said.
struct ReasoningSpace {
  bool printed = false;  // false: the template leaves reasoning out, and all white space around it is dropped
  std::string after_open = {}, before_close = {}, after_close = {};
};

struct AnswerFormat {
  bool split_reasoning = true;  // false: <think> is content
  bool in_reasoning = false;    // the prompt has opened <think>
  ReasoningSpace space = {};
  ToolSyntax tools = ToolSyntax::kNone;
  // What may be called. A syntax without markup (kLlama) knows a call by its name; the others do not look.
  std::vector<std::string> tool_names = {};
  bool keep_raw = false;  // AnswerEvent::raw and kMarkup, for tests and for looking at templates
};

struct AnswerEvent {
  enum Part { kReasoning, kContent, kMarkup, kCallName, kCallArguments, kCallEnd };
  Part part = kContent;
  std::string text;  // of arguments: the next piece of JSON text, as the model wrote it
  std::string raw;   // the piece of the answer that it stands for
};

class CallSplitter;
class AnswerWriter;

class AnswerParser {
 public:
  static constexpr size_t kMaxHeldBytes = 1 << 16;

  explicit AnswerParser(AnswerFormat format = {});
  ~AnswerParser();
  AnswerParser(AnswerParser&&) noexcept;
  AnswerParser& operator=(AnswerParser&&) noexcept;

  // Appends what is now decided.
  void Push(std::string_view text, std::vector<AnswerEvent>* events);
  // The answer ends here. A call that is under way keeps what was written of it, and has its kCallEnd only if its arguments
  // are a whole JSON object; without a whole name it is none.
  void Finish(std::vector<AnswerEvent>* events);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cachalot
