#include "engine/call_guide.h"

#include <algorithm>
#include <utility>

#include "tokenizer/chat/json_scanner.h"

namespace cachalot {
namespace {

std::string WithoutSpace(std::string_view text) {
  std::string out;
  std::copy_if(text.begin(), text.end(), std::back_inserter(out), [](char c) { return !IsJsonSpace(c); });
  return out;
}

// What of `text` is left when `taken`, which has no white space, stands already.
std::string_view Behind(std::string_view text, size_t taken) {
  size_t i = 0;
  for (; taken > 0; ++i) taken -= IsJsonSpace(text[i]) ? 0 : 1;
  return text.substr(i);
}

}  // namespace

CallGuide::CallGuide(CallRule rule) : rule_(std::move(rule)) {
  if (rule_.on && rule_.in_prompt) Begin();
}

void CallGuide::Begin() {
  if (rule_.on && state_ == State::kOff) state_ = rule_.names.empty() ? State::kArguments : State::kName;
}

bool CallGuide::Push(std::string_view text) {
  if (!open()) return true;
  const CallGuide before = *this;
  for (const char c : text) {
    if (!open()) break;
    if (PushByte(c)) continue;
    *this = before;
    return false;
  }
  return true;
}

bool CallGuide::PushByte(char c) {
  if (state_ == State::kArguments) {
    if (!arguments_.Push(c)) return false;
    if (arguments_.complete()) state_ = rule_.close.empty() ? State::kDone : State::kClose;
    return true;
  }
  if (IsJsonSpace(c)) return state_ == State::kClose || TakesSpace();
  taken_ += c;
  if (state_ == State::kClose) {
    const std::string close = WithoutSpace(rule_.close);
    if (!close.starts_with(taken_)) return false;
    if (close == taken_) state_ = State::kDone;
    return true;
  }
  const std::string middle = WithoutSpace(rule_.middle);
  bool possible = false;
  for (const std::string& name : rule_.names) {
    const std::string whole = name + middle;
    possible |= whole.starts_with(taken_);
    if (whole != taken_) continue;
    taken_.clear();
    state_ = State::kArguments;
    return true;
  }
  return possible;
}

// Within a name there is none, and none around one in quotes; behind another it is whole.
bool CallGuide::TakesSpace() {
  if (rule_.middle.starts_with('"')) {
    return std::none_of(rule_.names.begin(), rule_.names.end(), [this](const std::string& name) { return name.starts_with(taken_); });
  }
  if (taken_.empty()) return true;
  if (std::find(rule_.names.begin(), rule_.names.end(), taken_) != rule_.names.end()) {
    rule_.names = {taken_};
    return true;
  }
  return std::none_of(rule_.names.begin(), rule_.names.end(), [this](const std::string& name) { return name.starts_with(taken_); });
}

CallGuide::Ending CallGuide::Rest() const {
  switch (state_) {
    case State::kOff:
    case State::kDone:
      return {};
    case State::kArguments:
      return {.text = arguments_.Rest() + rule_.close};
    case State::kClose:
      return {.text = std::string(Behind(rule_.close, taken_.size()))};
    case State::kName:
      break;
  }
  const std::string middle = WithoutSpace(rule_.middle);
  for (const std::string& name : rule_.names) {
    if (!(name + middle).starts_with(taken_)) continue;
    const std::string end = "{}" + rule_.close;
    if (taken_.size() > name.size()) return {.text = std::string(Behind(rule_.middle, taken_.size() - name.size())) + end};
    return {.text = name.substr(taken_.size()) + rule_.middle + end, .name_bytes = name.size() - taken_.size()};
  }
  return {};
}

}  // namespace cachalot
