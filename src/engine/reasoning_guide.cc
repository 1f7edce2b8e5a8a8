#include "engine/reasoning_guide.h"

#include <algorithm>
#include <utility>

namespace cachalot {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";
constexpr std::string_view kSpace = " \t\r\n";
constexpr size_t kMaxSpaceBytes = 4096;  // before <think>

}  // namespace

ReasoningGuide::ReasoningGuide(ReasoningLimits limits) : limits_(std::move(limits)) {
  if (limits_.inside) phase_ = Phase::kInside;
}

void ReasoningGuide::Push(std::string_view text) {
  if (phase_ == Phase::kAnswer) return;
  const bool was_inside = phase_ == Phase::kInside;
  if (was_inside) {
    ++num_tokens_;
    ++tail_tokens_;
  }
  Look(text);
  if (was_inside && phase_ == Phase::kAnswer) num_tokens_ -= tail_tokens_;  // the tag's own
}

void ReasoningGuide::Look(std::string_view text) {
  tail_ += text;
  if (phase_ == Phase::kStart) {
    const size_t begin = std::min(tail_.find_first_not_of(kSpace), tail_.size());
    const std::string_view rest = std::string_view(tail_).substr(begin);
    if (rest.starts_with(kOpen)) {
      tail_.erase(0, begin + kOpen.size());
      phase_ = Phase::kInside;
    } else if (!kOpen.starts_with(rest) || tail_.size() > kMaxSpaceBytes) {
      phase_ = Phase::kAnswer;
    }
  }
  if (phase_ == Phase::kInside) {
    if (tail_.find(kClose) != std::string::npos) {
      phase_ = Phase::kAnswer;
      then_due_ = limits_.inside && !limits_.then_ids.empty();
    } else {
      size_t n = std::min(kClose.size() - 1, tail_.size());
      while (n > 0 && !tail_.ends_with(kClose.substr(0, n))) --n;
      tail_.erase(0, tail_.size() - n);
      if (n == 0) tail_tokens_ = 0;
    }
  }
  if (phase_ == Phase::kAnswer) tail_.clear();
}

std::span<const int32_t> ReasoningGuide::forced() const {
  if (then_due_) return limits_.then_ids;
  const bool used_up = phase_ == Phase::kInside && limits_.budget >= 0 && num_tokens_ >= limits_.budget;
  if (used_up && !close_forced_) return limits_.close_ids;
  return {};
}

void ReasoningGuide::BeginForced() {
  if (then_due_) {
    then_due_ = false;
    then_forced_ = true;
    return;
  }
  close_forced_ = true;
  // From here on nothing is reasoning, whatever these tokens spell.
  phase_ = Phase::kAnswer;
  tail_.clear();
  then_due_ = limits_.inside && !limits_.then_ids.empty();
}

}  // namespace cachalot
