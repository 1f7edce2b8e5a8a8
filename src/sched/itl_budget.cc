#include "sched/itl_budget.h"

#include <algorithm>

namespace cachalot {
namespace {

constexpr double kNewShare = 0.1;     // of the latest measurement in an average
constexpr double kFade = 0.9;         // of what was learnt of prompt tokens, with each step that has some
constexpr double kHeadroom = 0.9;     // of the target: steps of the same size vary
constexpr int32_t kFirstTokens = 64;  // before anything is known
constexpr double kOutlier = 4;        // targets, or steps without prompts; longer ones tell of something else
constexpr double kLeastShare = 0.05;  // of a step's time that is its prompt tokens' in any case
constexpr double kLeastOfMean = 0.2;  // of the mean time per token, wherever the line leads
constexpr double kSpread = 0.02;      // (1,024 tokens)^2: contexts that vary no more than that tell nothing of a slope
// Of the tokens, those that came soonest. Somewhat below a half: as soon as the bound has risen fewer steps have prompts in
// them, and a share at the median would make it swing to and fro.
constexpr double kPaceShare = 0.4;
constexpr double kBucketStep = 1.03;

void Average(double value, double* average) {
  *average = *average == 0 ? value : (1 - kNewShare) * *average + kNewShare * value;
}

}  // namespace

StreamPace::StreamPace(double share) : share_(share) {
  double edge = 1;
  for (double& bucket : edges_) {
    bucket = edge;
    edge *= kBucketStep;
  }
  steps_.reserve(kSteps);
}

void StreamPace::Add(double multiple, int32_t tokens) {
  const auto above = std::upper_bound(edges_.begin() + 1, edges_.end(), multiple);
  const Entry entry = {static_cast<uint8_t>(above - edges_.begin() - 1), tokens};
  if (steps_.size() < kSteps) {
    steps_.push_back(entry);
  } else {
    Entry& oldest = steps_[next_];
    tokens_[oldest.bucket] -= oldest.tokens;
    total_ -= oldest.tokens;
    oldest = entry;
  }
  next_ = (next_ + 1) % kSteps;
  tokens_[entry.bucket] += tokens;
  total_ += tokens;
  int64_t sum = 0;
  size_t bucket = 0;
  while (bucket + 1 < kBuckets && static_cast<double>(sum += tokens_[bucket]) < share_ * static_cast<double>(total_)) ++bucket;
  multiple_ = edges_[bucket];
}

void StreamPace::Clear() {
  if (steps_.empty()) return;
  tokens_.fill(0);
  steps_.clear();
  next_ = 0;
  total_ = 0;
  multiple_ = 1;
}

ItlBudget::ItlBudget(int64_t target_us, int32_t min_tokens, int32_t max_tokens, double ratio)
    : target_us_(static_cast<double>(target_us)),
      ratio_(ratio),
      min_tokens_(std::min(min_tokens, max_tokens)),
      max_tokens_(max_tokens),
      pace_(kPaceShare) {}

int32_t ItlBudget::PromptTokens(int64_t context, bool many) const {
  const bool by_ratio = target_us_ <= 0;
  if (by_ratio && (ratio_ <= 0 || many || fixed_us_ <= 0)) return max_tokens_;
  if (weight_ <= 0) return std::clamp(kFirstTokens, min_tokens_, max_tokens_);
  const double target_us = by_ratio ? ratio_ * pace_.multiple() * fixed_us_ : target_us_;
  const double per_token_us = std::max(at_zero_us_ + slope_us_ * static_cast<double>(context) / 1024, kLeastOfMean * mean_us_);
  const double fits = (kHeadroom * target_us - fixed_us_) / per_token_us;
  return static_cast<int32_t>(std::clamp<double>(fits, min_tokens_, max_tokens_));
}

void ItlBudget::Observe(const ItlStep& step) {
  if ((target_us_ <= 0 && ratio_ <= 0) || step.us <= 0) return;
  double time_us = static_cast<double>(step.us);
  // Nobody is left who saw what was before.
  if (step.decode_tokens == 0) pace_.Clear();
  else if (fixed_us_ > 0) pace_.Add(time_us / fixed_us_, step.decode_tokens);
  if (target_us_ > 0) {
    time_us = std::min(time_us, kOutlier * target_us_);
  } else if (fixed_us_ > 0) {
    time_us = std::min(time_us, (step.prompt_tokens == 0 ? 1 : kOutlier) * kOutlier * fixed_us_);
  }
  if (step.prompt_tokens == 0) {
    Average(time_us, &fixed_us_);
  } else {
    LearnPromptTokens(step, time_us);
  }
}

void ItlBudget::LearnPromptTokens(const ItlStep& step, double us) {
  const double x = static_cast<double>(step.prompt_context) / step.prompt_tokens / 1024;
  const double y = std::max(us - fixed_us_, kLeastShare * us) / step.prompt_tokens;
  weight_ = kFade * weight_ + 1;
  sum_x_ = kFade * sum_x_ + x;
  sum_xx_ = kFade * sum_xx_ + x * x;
  sum_y_ = kFade * sum_y_ + y;
  sum_xy_ = kFade * sum_xy_ + x * y;
  const double mean_x = sum_x_ / weight_;
  mean_us_ = sum_y_ / weight_;
  const double variance = sum_xx_ / weight_ - mean_x * mean_x;
  const double covariance = sum_xy_ / weight_ - mean_x * mean_us_;
  slope_us_ = std::max(0.0, covariance / (std::max(variance, 0.0) + kSpread));
  at_zero_us_ = mean_us_ - slope_us_ * mean_x;
}

}  // namespace cachalot
