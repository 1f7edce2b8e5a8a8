// DepthController: how many tokens to draft for each sequence of a step, 0 included, such that the tokens per time are
// most. A draft at depth d is worth the probability that it and those before it are accepted; a step costs what steps of
// its size took. Both are measured all the time: acceptance by depth over all sequences, and how each sequence fares
// against that; times by size.
// Invariants: drafts are made only where they promise at least kLeastGain more, and from a purse: what a step with drafts took
// beyond the worth of its tokens is paid from it, what it saved is put in, and so is a share of each step without drafts, and of
// the time that prompts took (kHopeful, or kIncome when drafts have been seen not to pay). It is empty at first, and nobody begins to draft before it
// holds the price of a try. So whatever is believed of acceptance and times, and however short the answer, drafting has
// never lost more than kHopeful of the time, prompts included, and what a try took more than its price. Deeper than one
// token only goes what was right at the depth before. What looks as if it did not pay is tried again, with one token of one
// sequence (together: of each), ever more rarely (kProbeFirst to kProbeLast steps), but at once where that was right (of one sequence).
// Where the host knows what it would have drafted, it need not try to know whether that was right (ObserveGuess): what such a
// guess would have saved is put into the purse, so that text that is a copy is drafted at once, and other text never.
// All of this is one engine's: a sequence begins with what was learned from those before it. Times are learned for each number
// of sequences by itself: 8 with 4 tokens each take another time than 32 with one.
// Where steps of every size have to be prepared (captured as a graph, which takes as long as many steps do), all sequences of
// a step are drafted equally deep (`together`): a batch then has as many sizes as there are depths. Otherwise every sequence
// gets what suits it.
// Deterministic: the same calls give the same depths. Allocates only while batches grow.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
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
  int64_t context = 0;  // cached tokens of all its sequences
};

class DepthController {
 public:
  static constexpr double kLeastGain = 0.02;
  static constexpr int64_t kProbeFirst = 16;
  static constexpr int64_t kProbeLast = 256;
  static constexpr int64_t kThinkEvery = 8;
  static constexpr int64_t kBaselineEvery = 64;   // a step without drafts, where they pay: what is it that they save?
  // Of the purse, in steps without drafts.
  static constexpr double kMostStake = 4;
  static constexpr double kMostDebt = 8;     // what takes longer is rather something else that had the machine
  static constexpr double kIncome = 0.005;   // each such step
  static constexpr double kHopeful = 0.018;
  static constexpr double kAwaitPrice = 0.5;  // for having waited in vain
  static constexpr double kGuessStake = 0.5;  // for a guess that would have been right
  // The price of a try before there was one: another row of a step, which costs a whole step where a step takes as long as
  // its rows, and less on a device, and what drafting reads, some of it twice.
  static constexpr double kRowPrice = 1, kRowPriceTogether = 0.5, kDraftPrice = 2;

  // adaptive false: always as many as are available (benchmarks, tests).
  // draft_cost: what drafting a token reads, of what a step reads.
  explicit DepthController(bool adaptive, bool together = false, double draft_cost = 0)
      : adaptive_(adaptive), together_(together), price_((together ? kRowPriceTogether : kRowPrice) + kDraftPrice * draft_cost) {
    by_depth_.fill({kPriorAccepted, kPriorTried});
  }

  // Whether the next step is worth a thought, or (Skip) none is lost on it: where nothing was drafted for a while, few are.
  bool Considers() const {
    return !adaptive_ || drafting_ || steps_without_ < kProbeFirst || steps_without_ % kThinkEvery == 0;
  }
  void Skip();
  // num_rows: sequences that decode in this step, with or without candidates. At most max_drafts in all.
  void Choose(std::span<DraftCandidate> candidates, int32_t num_rows, int32_t max_drafts);

  // Who drafts goes on as long as there is something left, who begins has the price of it.
  bool CanPay() const { return !adaptive_ || (purse_ > 0 && (drafting_ || purse_ >= std::min(price_, kMostStake))); }

  // Whether Choose would choose any, so that it is worth waiting for what the candidates bring: where Choose then chooses
  // none, that is paid for. Changes nothing else that is learned; the candidates' depths mean nothing then.
  bool WouldDraft(std::span<DraftCandidate> candidates, int32_t num_rows, int32_t max_drafts);

  void ObserveRow(DraftRecord* record, int32_t num_drafts, int32_t num_accepted);
  // A token came of which it is known whether its draft would have been right; there was none.
  void ObserveGuess(DraftRecord* record, bool right);
  void ObserveStep(const DraftedStep& step);
  // A step with prompts in it.
  void ObservePrompts(int64_t us) { prompts_us_ += static_cast<double>(us); }

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
  // What steps of so many sequences take.
  struct Times {
    StepCost step;  // without drafting, by 1 + drafts
    StepCost pass;  // of one pass of drafting, by rows
    int32_t depth_cap = 1;  // no deeper yet
    explicit Times(bool together) : step(together) {}
  };
  Times& TimesOf(int32_t num_rows);
  bool Knows(int32_t num_rows) { return TimesOf(num_rows).step.count(1) >= kBaselineSteps && steps_with_ < kBaselineEvery; }
  bool MayDraft(int32_t num_rows) { return CanPay() && Knows(num_rows); }
  void ChooseAdaptively(std::span<DraftCandidate> candidates, int32_t num_rows, int32_t max_drafts);
  void ChooseAll(std::span<DraftCandidate> candidates, int32_t max_drafts) const;
  void ChooseBest(std::span<DraftCandidate> candidates, int32_t num_rows, int32_t max_drafts);
  void ChooseTogether(std::span<DraftCandidate> candidates, int32_t num_rows, int32_t max_drafts);
  void Probe(std::span<DraftCandidate> candidates, int32_t num_rows, int32_t max_drafts);
  void Log(const char* what, int32_t num_rows);

  const bool adaptive_, together_;
  std::array<Tries, kMaxDrafts> by_depth_;
  std::vector<std::unique_ptr<Times>> times_;  // by number of sequences, in ranges
  std::vector<Gain> gains_;
  std::vector<double> values_;  // by candidate
  int64_t steps_without_ = 0;  // since there were drafts
  int64_t steps_with_ = 0;     // since there were none
  int64_t probe_every_ = kProbeFirst;
  double purse_ = 0;
  double prompts_us_ = 0;       // since the last step that was observed
  double price_;                // of a step with one draft of each, more than one without
  bool hopeful_ = true;         // drafts would pay, as far as is known
  bool guesses_ = false;        // the last that is known of acceptance is a guess
  float fade_ = 1;              // what records lose for the steps that were skipped
  bool drafting_ = false;       // in the last step that was chosen, because it pays
  uint64_t num_probes_ = 0;
  int32_t num_rows_ = 1;        // of the step that was chosen for last
  bool awaited_ = false;        // WouldDraft said so
};

}  // namespace cachalot
