// CallSplitter: divides what follows the reasoning into content and tool calls, for one syntax. It gets the
// text byte by byte, with the syntax's tags found already.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/chat/answer_writer.h"
#include "tokenizer/chat/json_scanner.h"

namespace cachalot {

class CallSplitter {
 public:
  virtual ~CallSplitter() = default;
  virtual const std::vector<std::string>& tags() const = 0;
  virtual void Byte(char c) = 0;
  virtual void Tag(size_t tag, std::string_view text) = 0;
  // The text ends here, perhaps within a tag, whose beginning `held` is. A call that is open stays so: it has no end, and of
  // one without a whole name nothing is written.
  void Finish(std::string_view held) {
    const bool is_text = IsText(held);
    for (const char c : is_text ? held : "") Byte(c);
    End();
    if (!is_text) Markup(held);
  }

 protected:
  explicit CallSplitter(AnswerWriter* writer) : writer_(*writer) {}

  void Content(char c);
  // Text that turned out to be no call. Tags in it are dropped: they would look as if they meant something.
  void ContentOf(std::string_view text);
  void Markup(std::string_view text) {
    writer_.Markup(text);
    after_markup_ = true;
  }

  // Whether the beginning of a tag, at the end of the text, is what it looks like otherwise.
  virtual bool IsText(std::string_view held) const = 0;
  virtual void End() = 0;

  AnswerWriter& writer_;
  bool after_markup_ = false;  // white space that follows is of no meaning
};

// Arguments that stand between tags: passed on as they stand, without white space and fences around them. Once
// a JSON object has ended, what follows is no part of them.
class TaggedArguments {
 public:
  explicit TaggedArguments(AnswerWriter* writer) : writer_(*writer) {}
  void Begin();
  void Byte(char c);
  void End();  // writes "{}" where there was nothing
  void Cut();  // the text ends, and these perhaps not
  bool in_object() const { return is_json_ && !ended_; }
  bool in_string() const { return in_object() && scanner_.in_string(); }
  bool complete() const { return ended_; }

 private:
  AnswerWriter& writer_;
  bool any_ = false, wrote_ = false, is_json_ = false, ended_ = false;
  std::string tail_;  // white space and backticks that may be the end
  JsonScanner scanner_;
};

// Without tools: all is content.
std::unique_ptr<CallSplitter> MakePlainSplitter(AnswerWriter* writer);
std::unique_ptr<CallSplitter> MakeHermesSplitter(AnswerWriter* writer);
std::unique_ptr<CallSplitter> MakeLlamaSplitter(AnswerWriter* writer, std::vector<std::string> names);
std::unique_ptr<CallSplitter> MakeMistralSplitter(AnswerWriter* writer);
std::unique_ptr<CallSplitter> MakeDeepSeekSplitter(AnswerWriter* writer, bool typed);  // typed: V3 and R1
std::unique_ptr<CallSplitter> MakeDsmlSplitter(AnswerWriter* writer);

}  // namespace cachalot
