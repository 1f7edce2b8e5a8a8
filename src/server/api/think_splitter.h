// ThinkSplitter: divides an answer as it streams into what stands between <think> and </think>, and the rest.
// Invariant: how the text is cut into pieces does not change the result. Without a <think> at the very beginning (or in
// the prompt) nothing is reasoning, whatever comes later.
#pragma once

#include <string>
#include <string_view>

namespace cachalot {

class ThinkSplitter {
 public:
  // inside: the prompt has opened the tag already. off: everything is content.
  explicit ThinkSplitter(bool inside = false, bool off = false);

  struct Parts {
    std::string reasoning;
    std::string content;
  };
  Parts Push(std::string_view text);
  // What was held back because a tag might have begun.
  Parts Finish();
  bool reasoning() const { return state_ == State::kInside; }

 private:
  enum class State { kStart, kInside, kAfterClose, kContent };
  void Drain(bool at_end, Parts* parts);

  State state_;
  std::string pending_;
  bool skip_space_ = false;  // of the reasoning's beginning
};

}  // namespace cachalot
