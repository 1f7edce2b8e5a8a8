// CallGuide: follows a tool call that an answer must be, from behind its opening, and says how it could end well. Invariant:
// the text that it accepted, followed by Rest(), is a whole call: a name from the list, and a JSON object as its arguments.
// White space around the markup is the model's own, except where it would be part of the name.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/chat/json_prefix.h"

namespace cachalot {

struct CallRule {
  bool on = false;
  bool in_prompt = false;          // the answer begins behind the opening; else that is forced (ReasoningLimits::then_ids)
  std::vector<std::string> names;  // that may be called; empty: the opening holds name and middle
  std::string middle;              // between the name and the arguments
  std::string close;               // behind the arguments
};

class CallGuide {
 public:
  explicit CallGuide(CallRule rule);

  // The opening is complete.
  void Begin();
  // A call has begun and is not at its end.
  bool open() const { return state_ != State::kOff && state_ != State::kDone; }
  // The answer's next text. False: no call goes on like that, and nothing was taken. Behind the call anything does.
  bool Push(std::string_view text);
  // A character that is not ASCII may come.
  bool takes_text() const { return !open() || (state_ == State::kArguments && arguments_.in_string()); }

  struct Ending {
    std::string text;
    size_t name_bytes = 0;  // of it, the first: a name, in which no control token is to be found
  };
  Ending Rest() const;
  // The ending is about to be put there: what comes is not looked at.
  void End() { state_ = State::kDone; }

 private:
  enum class State { kOff, kName, kArguments, kClose, kDone };
  bool PushByte(char c);
  bool TakesSpace();

  CallRule rule_;
  State state_ = State::kOff;
  std::string taken_;  // kName, kClose: without white space
  JsonPrefix arguments_;
};

}  // namespace cachalot
