// DepthController: how many tokens to draft for each sequence of a step, 0 included, such that the tokens per time are
// most. A draft at depth d is worth the probability that it and those before it are accepted; a step costs what steps of
// its size took. Both are measured all the time: acceptance by depth over all sequences, and how each sequence fares
// against that; times by size. Invariants: drafts are made only where they promise at least kLeastGain more; what looks as
// if it did not pay is tried again, with one token of one sequence, ever more rarely (kProbeFirst to kProbeLast steps).
// Deterministic: the same calls give the same depths. Allocates only while batches grow.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "spec/plan.h"
#include "spec/step_cost.h"

namespace cachalot {

// What is known of one sequence. Old tries count less and less, and those of a sequence that is not drafted for fade: it
// is then as all others are.
struct DraftRecord {
  float accepted = 0;
  float expected = 0;  // had it been like the others
};

struct DraftCandidate {
  DraftRecord* record = nullptr;
  int32_t available = 0;  // tokens that can be drafted
  int32_t depth = 0;      // out: how many are
};

class DepthController {
 public:
  static constexpr double kLeastGain = 0.02;
  static constexpr int64_t kProbeFirst = 16;
  static constexpr int64_t kProbeLast = 256;
  static constexpr int64_t kBaselineEvery = 128;  // a step without drafts, where they pay: what is it that they save?

  // adaptive false: always as many as are available (benchmarks, tests).
  explicit DepthController(bool adaptive) : adaptive_(adaptive) { by_depth_.fill({kPriorAccepted, kPriorTried}); }

  // num_rows: sequences that decode in this step, with or without candidates. At most max_drafts in all.
  void Choose(std::span<DraftCandidate> candidates, int32_t num_rows, int32_t max_drafts);

  void ObserveRow(DraftRecord* record, int32_t num_drafts, int32_t num_accepted);
  // A step of nothing but sequences that decode. draft_us of step_us went into drafting, in num_passes one after the
  // other for num_drafted rows.
  void ObserveStep(int32_t num_tokens, int32_t num_drafted, int32_t num_passes, int64_t step_us, int64_t draft_us);

  // The probability that a draft at `depth` (from 0) is accepted, given that those before it are.
  double Acceptance(const DraftRecord& record, int32_t depth) const;

 private:
  static constexpr double kPriorAccepted = 6, kPriorTried = 8;
  struct Tries {
    double accepted = 0;
    double tried = 0;
    double rate() const { return accepted / tried; }
  };
  struct Gain {
    double value = 0;
    int32_t candidate = 0;
    int32_t depth = 0;
  };
  void ChooseAll(std::span<DraftCandidate> candidates, int32_t max_drafts) const;
  void ChooseBest(std::span<DraftCandidate> candidates, int32_t num_rows, int32_t max_drafts);
  void Probe(std::span<DraftCandidate> candidates);

  const bool adaptive_;
  std::array<Tries, kMaxDrafts> by_depth_;
  StepCost step_cost_;  // without drafting, by tokens
  StepCost pass_cost_;  // of one pass of drafting, by rows
  std::vector<Gain> gains_;
  int64_t steps_without_ = 0;  // since there were drafts
  int64_t steps_with_ = 0;     // since there were none
  int64_t probe_every_ = kProbeFirst;
  uint64_t num_probes_ = 0;
};

}  // namespace cachalot
