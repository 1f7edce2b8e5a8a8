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
  // The text ends here.
  virtual void End() = 0;

 protected:
  explicit CallSplitter(AnswerWriter* writer) : writer_(*writer) {}

  void Content(char c);
  // Text that turned out to be no call. Tags in it are dropped: they would look as if they meant something.
  void ContentOf(std::string_view text);
  void Markup(std::string_view text) {
    writer_.Markup(text);
    after_markup_ = true;
  }

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
