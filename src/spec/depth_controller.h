// DepthController: how many tokens to draft for each sequence of a step, 0 included, such that the tokens per time are
// most. A draft at depth d is worth the probability that it and those before it are accepted; a step costs what steps of
// its size took. Both are measured all the time: acceptance by depth over all sequences, and how each sequence fares
// against that; times by size.
// Invariants: drafts are made only where they promise at least kLeastGain more, and while the purse is not empty: what a
// step with drafts took beyond the worth of its tokens is paid from it, what it saved is put in. So whatever is believed of
// acceptance and times, drafting loses no more than kFirstStake steps, one try, and kIncome of the time. Deeper than one
// token only goes what was right at the depth before. What looks as if it did not pay is tried again, with one token of one
// sequence (together: of each), ever more rarely (kProbeFirst to kProbeLast steps), but at once where that was right.
// Where steps of every size have to be prepared (captured as a graph, which takes as long as many steps do), all sequences of
// a step are drafted equally deep (`together`): a batch then has as many sizes as there are depths. Otherwise every sequence
// gets what suits it.
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

// What a step of nothing but sequences that decode has shown.
struct DraftedStep {
  int32_t num_rows = 0;      // sequences
  int32_t num_tokens = 0;    // theirs and their drafts
  int32_t num_accepted = 0;  // drafts
  // Where drafts are made in the step: for how many rows, in how many passes one after the other, and of step_us, in what
  // time.
  int32_t num_drafted = 0;
  int32_t num_passes = 0;
  int64_t step_us = 0;
  int64_t draft_us = 0;
};

class DepthController {
 public:
  static constexpr double kLeastGain = 0.02;
  static constexpr int64_t kProbeFirst = 16;
  static constexpr int64_t kProbeLast = 256;
  static constexpr int64_t kThinkEvery = 8;
  static constexpr int64_t kBaselineEvery = 128;  // a step without drafts, where they pay: what is it that they save?
  // Of the purse, in steps without drafts.
  static constexpr double kFirstStake = 0.5;
  static constexpr double kMostStake = 4;
  static constexpr double kMostDebt = 8;     // what takes longer is rather something else that had the machine
  static constexpr double kIncome = 0.005;  // each such step

  // adaptive false: always as many as are available (benchmarks, tests).
  explicit DepthController(bool adaptive, bool together = false) : adaptive_(adaptive), together_(together) {
    by_depth_.fill({kPriorAccepted, kPriorTried});
  }

  // Whether the next step is worth a thought, or (Skip) none is lost on it: where nothing was drafted for a while, few are.
  bool Considers() const {
    return !adaptive_ || drafting_ || (purse_ > 0 && (steps_without_ < kProbeFirst || steps_without_ % kThinkEvery == 0));
  }
  void Skip();
  // num_rows: sequences that decode in this step, with or without candidates. At most max_drafts in all.
  void Choose(std::span<DraftCandidate> candidates, int32_t num_rows, int32_t max_drafts);

  // Whether Choose would choose any. Changes nothing that is learned; the candidates' depths mean nothing then.
  bool WouldDraft(std::span<DraftCandidate> candidates, int32_t num_rows, int32_t max_drafts);

  void ObserveRow(DraftRecord* record, int32_t num_drafts, int32_t num_accepted);
  void ObserveStep(const DraftedStep& step);

  // The probability that a draft at `depth` (from 0) is accepted, given that those before it are.
  double Acceptance(const DraftRecord& record, int32_t depth) const;

 private:
  static constexpr int32_t kBaselineSteps = 3;  // measured before the first draft
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
  bool MayDraft(int32_t num_rows) const {
    return purse_ > 0 && step_cost_.count(num_rows) >= kBaselineSteps && steps_with_ < kBaselineEvery;
  }
  void ChooseAll(std::span<DraftCandidate> candidates, int32_t max_drafts) const;
  void ChooseBest(std::span<DraftCandidate> candidates, int32_t num_rows, int32_t max_drafts);
  void ChooseTogether(std::span<DraftCandidate> candidates, int32_t num_rows, int32_t max_drafts);
  double CostOf(const StepCost& learned, int32_t size) const;
  void Probe(std::span<DraftCandidate> candidates, int32_t max_drafts);
  void Log(const char* what, int32_t num_rows) const;

  const bool adaptive_, together_;
  std::array<Tries, kMaxDrafts> by_depth_;
  StepCost step_cost_;  // without drafting, by tokens
  StepCost pass_cost_;  // of one pass of drafting, by rows
  std::vector<Gain> gains_;
  std::vector<double> values_;  // by candidate
  int64_t steps_without_ = 0;  // since there were drafts
  int64_t steps_with_ = 0;     // since there were none
  int64_t probe_every_ = kProbeFirst;
  double purse_ = kFirstStake;
  float fade_ = 1;              // what records lose for the steps that were skipped
  int32_t depth_cap_ = 1;       // no deeper yet
  bool drafting_ = false;       // in the last step that was chosen, because it pays
  uint64_t num_probes_ = 0;
};

}  // namespace cachalot
