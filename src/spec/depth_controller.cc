#include "spec/depth_controller.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"

namespace cachalot {
namespace {

constexpr double kForgetAll = 0.015;        // of all sequences' tries, per step with one of each
constexpr float kForgetOwn = 0.97f;         // per try, of one sequence
constexpr float kFade = 0.99f;              // per step without any
constexpr double kOwnPrior = 3;             // tries that speak for its being like the others
constexpr double kMostAcceptance = 0.98;
constexpr double kLeastWorth = 0.02;        // tokens that a draft must promise
constexpr double kNewPrice = 1.0;           // weight of the newest one

// A clock that stands still says that size does not matter.
double CostOf(const StepCost& step, int32_t num_drafts) { return std::max(1.0, step.Estimate(1 + num_drafts)); }

// Numbers of sequences whose steps are taken to cost the same: each for itself, then ranges an eighth wide.
size_t RangeOf(int32_t num_rows) {
  constexpr int32_t kNumExact = 16;
  if (num_rows <= kNumExact) return static_cast<size_t>(num_rows);
  return static_cast<size_t>(kNumExact + 1 + std::log(static_cast<double>(num_rows) / kNumExact) / std::log(1.125));
}

bool AnyAvailable(std::span<const DraftCandidate> candidates) {
  return std::any_of(candidates.begin(), candidates.end(), [](const auto& candidate) { return candidate.available > 0; });
}

bool AnyChosen(std::span<const DraftCandidate> candidates) {
  return std::any_of(candidates.begin(), candidates.end(), [](const auto& candidate) { return candidate.depth > 0; });
}

}  // namespace

DepthController::Times& DepthController::TimesOf(int32_t num_rows) {
  const size_t i = RangeOf(std::max(1, num_rows));
  if (i >= times_.size()) times_.resize(i + 1);
  if (times_[i] == nullptr) times_[i] = std::make_unique<Times>(together_);
  return *times_[i];
}

double DepthController::Acceptance(const DraftRecord& record, int32_t depth) const {
  const double all = by_depth_[static_cast<size_t>(depth)].rate();
  const double own = (record.accepted + kOwnPrior * all) / (record.expected + kOwnPrior * all);
  return std::min(kMostAcceptance, all * own);
}

void DepthController::ObserveRow(DraftRecord* record, int32_t num_drafts, int32_t num_accepted) {
  for (int32_t depth = 0; depth < std::min(num_drafts, num_accepted + 1); ++depth) {
    const double accepted = depth < num_accepted ? 1 : 0;
    Tries& all = by_depth_[static_cast<size_t>(depth)];
    record->accepted = record->accepted * kForgetOwn + static_cast<float>(accepted);
    record->expected = record->expected * kForgetOwn + static_cast<float>(all.rate());
    const double kept = 1 - kForgetAll / std::max(1, num_rows_);
    all.accepted = all.accepted * kept + accepted;
    all.tried = all.tried * kept + 1;
    // A rate of 0 would let nothing tell sequences apart.
    all.accepted = std::max(all.accepted, 0.01 * all.tried);
  }
  // One that was right is a little news of one sequence; of many there is enough to decide.
  if (num_accepted > 0 && !drafting_ && (!together_ || num_rows_ == 1)) probe_every_ = 1;
  int32_t& depth_cap = TimesOf(num_rows_).depth_cap;
  if (num_accepted == num_drafts && num_drafts == depth_cap) depth_cap = std::min(depth_cap + 1, kMaxDrafts);
}

void DepthController::ObserveGuess(DraftRecord* record, bool right) {
  ObserveRow(record, 1, right ? 1 : 0);
  guesses_ = true;
  if (right) purse_ = std::min(purse_ + kGuessStake, std::max(purse_, std::min(price_, kMostStake)));
}

void DepthController::ObserveStep(const DraftedStep& step) {
  const auto step_us = static_cast<double>(step.step_us);
  const int32_t num_drafts = step.num_tokens - step.num_rows;
  Times& times = TimesOf(step.num_rows);
  const auto without_us = static_cast<double>(std::max<int64_t>(0, step.step_us - step.draft_us));
  const int64_t context = step.context / std::max(1, step.num_rows);
  const bool compares = times.step.Observe(1 + num_drafts, without_us, context);
  if (step.num_passes > 0) {
    times.pass.Observe(step.num_drafted, static_cast<double>(step.draft_us) / static_cast<double>(step.num_passes), context);
  }
  // Not all sizes get faster alike: what does a step without drafts take here?
  if (times.step.moved() && num_drafts > 0) steps_with_ = kBaselineEvery;
  const double income = hopeful_ ? kHopeful : kIncome;
  double change = income;
  if (num_drafts > 0 && compares) {
    const double tokens = static_cast<double>(step.num_rows + step.num_accepted) / step.num_rows;
    const double steps = step_us / CostOf(times.step, 0);
    change = tokens - steps;
    if (num_drafts <= step.num_rows) price_ += (std::clamp(steps - 1, 0.0, kMostDebt) - price_) * kNewPrice;
  } else if (num_drafts > 0) {
    change = -price_;
  }
  change += income * std::exchange(prompts_us_, 0.0) / CostOf(times.step, 0);
  purse_ = std::clamp(purse_ + change, -kMostDebt, kMostStake);
}

void DepthController::Choose(std::span<DraftCandidate> candidates, int32_t num_rows, int32_t max_drafts) {
  for (DraftCandidate& candidate : candidates) candidate.depth = 0;
  const bool awaited = std::exchange(awaited_, false);
  num_rows_ = num_rows;
  if (candidates.empty() || max_drafts <= 0) return;
  if (!adaptive_) return ChooseAll(candidates, max_drafts);
  ChooseAdaptively(candidates, num_rows, max_drafts);
  if (!awaited || AnyChosen(candidates)) return;
  purse_ = std::max(purse_ - kAwaitPrice, -kMostDebt);
  steps_without_ = 0;
}

void DepthController::ChooseAdaptively(std::span<DraftCandidate> candidates, int32_t num_rows, int32_t max_drafts) {
  const bool may = MayDraft(num_rows);
  if (Knows(num_rows)) {
    ChooseBest(candidates, num_rows, max_drafts);
    if (AnyAvailable(candidates)) hopeful_ = AnyChosen(candidates);
    if (!may) for (DraftCandidate& candidate : candidates) candidate.depth = 0;
  }
  fade_ *= kFade;
  for (DraftCandidate& candidate : candidates) {
    if (candidate.depth > 0) continue;
    candidate.record->accepted *= fade_;
    candidate.record->expected *= fade_;
  }
  fade_ = 1;
  const bool drafts = AnyChosen(candidates);
  if (drafts != drafting_) Log(drafts ? "they pay" : "they pay no more", num_rows);
  drafting_ = drafts;
  if (drafts) {
    ++steps_with_;
    steps_without_ = 0;
    probe_every_ = kProbeFirst;
    return;
  }
  steps_with_ = 0;
  if (++steps_without_ < probe_every_ || !may || guesses_ || !AnyAvailable(candidates)) return;
  steps_without_ = 0;
  probe_every_ = std::min(2 * probe_every_, kProbeLast);
  Log("one is tried", num_rows);
  Probe(candidates, num_rows, max_drafts);
}

void DepthController::Skip() {
  drafting_ = false;
  steps_with_ = 0;
  ++steps_without_;
  fade_ *= kFade;
}

bool DepthController::WouldDraft(std::span<DraftCandidate> candidates, int32_t num_rows, int32_t max_drafts) {
  if (max_drafts <= 0 || !AnyAvailable(candidates)) return false;
  if (!adaptive_) return true;
  if (!MayDraft(num_rows)) return false;
  awaited_ = steps_without_ + 1 >= probe_every_ && !guesses_;
  if (awaited_) return true;
  for (DraftCandidate& candidate : candidates) candidate.depth = 0;
  ChooseBest(candidates, num_rows, max_drafts);
  return awaited_ = AnyChosen(candidates);
}

void DepthController::Log(const char* what, int32_t num_rows) {
  if (!spdlog::should_log(spdlog::level::debug)) return;
  const Times& times = TimesOf(num_rows);
  const auto us = [&](int32_t size) { return times.step.Estimate(1 + size); };
  LOG_DEBUG("drafts: {}: {} sequences, steps of {:.0f} us, {:.0f} with a draft, {:.0f} with 4; {:.0f} us a pass for one, {:.0f} for all; "
            "accepted {:.2f}, {:.2f}; purse {:.2f}",
            what, num_rows, us(0), us(1), us(4), times.pass.Estimate(1), times.pass.Estimate(num_rows), by_depth_[0].rate(),
            by_depth_[1].rate(), purse_);
}

void DepthController::ChooseAll(std::span<DraftCandidate> candidates, int32_t max_drafts) const {
  for (DraftCandidate& candidate : candidates) {
    candidate.depth = std::min(candidate.available, max_drafts);
    max_drafts -= candidate.depth;
  }
}

// One depth for all, the best as a whole.
void DepthController::ChooseTogether(std::span<DraftCandidate> candidates, int32_t num_rows, int32_t max_drafts) {
  const Times& times = TimesOf(num_rows);
  double best = static_cast<double>(num_rows) / CostOf(times.step, 0) * (1 + kLeastGain);
  double tokens = num_rows;
  int32_t num_drafts = 0, best_depth = 0;
  values_.assign(candidates.size(), 1.0);
  for (int32_t depth = 0; depth < times.depth_cap; ++depth) {
    int32_t num_drafted = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (candidates[i].available <= depth) continue;
      values_[i] *= Acceptance(*candidates[i].record, depth);
      tokens += values_[i];
      ++num_drafted;
    }
    num_drafts += num_drafted;
    if (num_drafted == 0 || num_drafts > max_drafts) break;
    const double time = CostOf(times.step, num_drafts) + (depth + 1) * times.pass.Estimate(num_drafted);
    if (tokens / time <= best) continue;
    best = tokens / time;
    best_depth = depth + 1;
  }
  for (DraftCandidate& candidate : candidates) candidate.depth = std::min(candidate.available, best_depth);
}

// The best drafts first, whosever they are, as long as the step as a whole gains by them.
void DepthController::ChooseBest(std::span<DraftCandidate> candidates, int32_t num_rows, int32_t max_drafts) {
  if (together_) return ChooseTogether(candidates, num_rows, max_drafts);
  const Times& times = TimesOf(num_rows);
  gains_.clear();
  for (size_t i = 0; i < candidates.size(); ++i) {
    double value = 1;
    for (int32_t depth = 0; depth < std::min(candidates[i].available, times.depth_cap); ++depth) {
      value *= Acceptance(*candidates[i].record, depth);
      if (value < kLeastWorth) break;
      gains_.push_back({value, static_cast<int32_t>(i), depth});
    }
  }
  std::sort(gains_.begin(), gains_.end(), [](const Gain& a, const Gain& b) {
    if (a.value != b.value) return a.value > b.value;
    return a.candidate != b.candidate ? a.candidate < b.candidate : a.depth < b.depth;
  });
  double best = static_cast<double>(num_rows) / CostOf(times.step, 0) * (1 + kLeastGain);
  size_t num_best = 0;
  double tokens = num_rows;
  int32_t num_passes = 0, num_drafted = 0;
  const size_t most = std::min(gains_.size(), static_cast<size_t>(max_drafts));
  for (size_t n = 1; n <= most; ++n) {
    const Gain& gain = gains_[n - 1];
    tokens += gain.value;
    num_passes = std::max(num_passes, gain.depth + 1);
    if (gain.depth == 0) ++num_drafted;
    const double time = CostOf(times.step, static_cast<int32_t>(n)) + num_passes * times.pass.Estimate(num_drafted);
    if (tokens / time <= best) continue;
    best = tokens / time;
    num_best = n;
  }
  for (size_t n = 0; n < num_best; ++n) {
    DraftCandidate& candidate = candidates[static_cast<size_t>(gains_[n].candidate)];
    candidate.depth = std::max(candidate.depth, gains_[n].depth + 1);
  }
}

void DepthController::Probe(std::span<DraftCandidate> candidates, int32_t num_rows, int32_t max_drafts) {
  TimesOf(num_rows).depth_cap = 1;
  if (together_) {
    for (DraftCandidate& candidate : candidates) {
      candidate.depth = std::min({candidate.available, max_drafts, 1});
      max_drafts -= candidate.depth;
    }
    return;
  }
  for (size_t i = 0; i < candidates.size(); ++i) {
    DraftCandidate& candidate = candidates[(num_probes_ + i) % candidates.size()];
    if (candidate.available == 0) continue;
    candidate.depth = 1;
    num_probes_ += i + 1;
    return;
  }
}

}  // namespace cachalot
