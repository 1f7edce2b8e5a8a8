#include "sched/itl_budget.h"

#include <algorithm>

namespace cachalot {
namespace {

constexpr double kNewShare = 0.1;     // of the latest measurement in an average
constexpr double kHeadroom = 0.9;     // of the target: steps of the same size vary
constexpr int32_t kFirstTokens = 64;  // before anything is known
constexpr double kOutlier = 4;        // targets, or steps without prompts; longer ones tell of something else
constexpr double kLeastShare = 0.05;  // of a step's time that is its prompt tokens' in any case

void Average(double value, double* average) {
  *average = *average == 0 ? value : (1 - kNewShare) * *average + kNewShare * value;
}

}  // namespace

ItlBudget::ItlBudget(int64_t target_us, int32_t min_tokens, int32_t max_tokens, double ratio)
    : target_us_(static_cast<double>(target_us)),
      ratio_(ratio),
      min_tokens_(std::min(min_tokens, max_tokens)),
      max_tokens_(max_tokens) {}

int32_t ItlBudget::PromptTokens(bool many) const {
  const bool by_ratio = target_us_ <= 0;
  if (by_ratio && (ratio_ <= 0 || many || fixed_us_ <= 0)) return max_tokens_;
  if (per_token_us_ <= 0) return std::clamp(kFirstTokens, min_tokens_, max_tokens_);
  const double target_us = by_ratio ? ratio_ * fixed_us_ : target_us_;
  const double fits = (kHeadroom * target_us - fixed_us_) / per_token_us_;
  return static_cast<int32_t>(std::clamp<double>(fits, min_tokens_, max_tokens_));
}

void ItlBudget::Observe(int32_t prompt_tokens, int64_t step_us) {
  if ((target_us_ <= 0 && ratio_ <= 0) || step_us <= 0) return;
  double time_us = static_cast<double>(step_us);
  if (target_us_ > 0) {
    time_us = std::min(time_us, kOutlier * target_us_);
  } else if (fixed_us_ > 0) {
    time_us = std::min(time_us, (prompt_tokens == 0 ? 1 : kOutlier) * kOutlier * fixed_us_);
  }
  if (prompt_tokens == 0) {
    Average(time_us, &fixed_us_);
  } else {
    Average(std::max(time_us - fixed_us_, kLeastShare * time_us) / prompt_tokens, &per_token_us_);
  }
}

}  // namespace cachalot
