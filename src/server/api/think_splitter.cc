#include "server/api/think_splitter.h"

#include <algorithm>

namespace cachalot {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";
constexpr std::string_view kSpace = " \t\r\n";

// Bytes at the end of text that may be the beginning of `tag`, or of white space that would be dropped before it.
size_t HeldBack(std::string_view text, std::string_view tag) {
  size_t held = 0;
  for (size_t n = std::min(tag.size() - 1, text.size()); n > 0; --n) {
    if (text.ends_with(tag.substr(0, n))) {
      held = n;
      break;
    }
  }
  while (held < text.size() && kSpace.find(text[text.size() - held - 1]) != std::string_view::npos) ++held;
  return held;
}

}  // namespace

ThinkSplitter::ThinkSplitter(bool inside, bool off)
    : state_(off ? State::kContent : inside ? State::kInside : State::kStart), skip_space_(inside) {}

ThinkSplitter::Parts ThinkSplitter::Push(std::string_view text) {
  Parts parts;
  pending_ += text;
  Drain(false, &parts);
  return parts;
}

ThinkSplitter::Parts ThinkSplitter::Finish() {
  Parts parts;
  Drain(true, &parts);
  return parts;
}

void ThinkSplitter::Drain(bool at_end, Parts* parts) {
  if (state_ == State::kStart) {
    const size_t begin = std::min(pending_.find_first_not_of(kSpace), pending_.size());
    const std::string_view rest = std::string_view(pending_).substr(begin);
    if (rest.starts_with(kOpen)) {
      pending_.erase(0, begin + kOpen.size());
      state_ = State::kInside;
      skip_space_ = true;
    } else if (at_end || !kOpen.starts_with(rest)) {
      state_ = State::kContent;
    } else {
      return;
    }
  }
  if (state_ == State::kInside) {
    if (skip_space_) {
      pending_.erase(0, std::min(pending_.find_first_not_of(kSpace), pending_.size()));
      if (pending_.empty()) return;
      skip_space_ = false;
    }
    const size_t close = pending_.find(kClose);
    if (close == std::string::npos) {
      const size_t keep = at_end ? 0 : HeldBack(pending_, kClose);
      parts->reasoning += pending_.substr(0, pending_.size() - keep);
      pending_.erase(0, pending_.size() - keep);
      return;
    }
    const size_t end = pending_.find_last_not_of(kSpace, close == 0 ? 0 : close - 1);
    parts->reasoning += pending_.substr(0, close == 0 || end == std::string::npos ? 0 : end + 1);
    pending_.erase(0, close + kClose.size());
    state_ = State::kAfterClose;
  }
  if (state_ == State::kAfterClose) {
    pending_.erase(0, std::min(pending_.find_first_not_of(kSpace), pending_.size()));
    if (pending_.empty()) return;
    state_ = State::kContent;
  }
  parts->content += pending_;
  pending_.clear();
}

}  // namespace cachalot
