// ObjectCall: a tool call written as a JSON object, {"name": "f", "arguments": {…}}, read as it streams. The
// arguments ("parameters" is their other name) are passed on as they stand; other keys are skipped. Invariant:
// before the name is known nothing is written, and nothing is lost.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/chat/answer_writer.h"
#include "tokenizer/chat/json_scanner.h"

namespace cachalot {

// The text of a JSON string without its quotes; false when it is none.
bool UnescapeJson(std::string_view raw, std::string* text);

class ObjectCall {
 public:
  // known: names that may be called; null: any. With names, keys that a call does not have break it too.
  ObjectCall(AnswerWriter* writer, const std::vector<std::string>* known) : writer_(writer), known_(known) {}

  enum class State {
    kOpen,
    kDone,    // the object ended, and the call with it
    kBroken,  // it is no call (then TakeHeld has its text), or stopped being one
  };
  void Reset();
  State Push(char c);
  // The call ends here, if it has begun.
  void Close();
  // The text ends here: a call that has begun ends with it only if it has its arguments.
  void Cut();

  bool begun() const { return begun_; }  // the name has been written
  bool in_string() const { return where_ == kKey || where_ == kName || scanner_.in_string(); }
  bool in_value() const { return where_ == kBeforeValue || where_ == kArguments || where_ == kSkipped || where_ == kRest; }
  // Of one that has not begun: what was read is the beginning of a call.
  bool may_begin() const;
  bool after_newline() const { return last_ == '\n'; }
  // What was read of a call that never began.
  std::string TakeHeld();

 private:
  enum Where { kBefore, kBetween, kKey, kAfterKey, kBeforeValue, kName, kArguments, kSkipped, kAfterValue, kRest };

  State Step(char c);
  State EndName();
  State BeginValue(char c);
  State InValue(char c);
  State Broken(char c);
  void Keep(char c);  // a byte that is neither name nor arguments

  AnswerWriter* const writer_;
  const std::vector<std::string>* const known_;
  Where where_ = kBefore;
  JsonScanner scanner_;
  std::string held_;       // all bytes so far, until the name is known
  std::string word_;       // the key, or the name as it is written
  std::string early_;      // arguments that came before the name
  bool escaped_ = false;   // in word_
  bool begun_ = false;
  bool has_early_ = false;
  bool has_arguments_ = false;
  char last_ = '\0';
};

}  // namespace cachalot
