// SchedulerTrace: all that a scheduler was told, in order: arrivals, departures, results and the time.
// Whoever tells another scheduler the same gets the same plans: what a schedule was and why can be found out
// afterwards, without a model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/block_manager.h"
#include "sched/plan.h"
#include "sched/sequence.h"

namespace cachalot {

class SchedulingPolicy;
struct SchedulerLimits;
struct SchedulerOptions;

struct SchedulerEvent {
  enum Kind { kAdd, kRemove, kPlan, kCommit, kAbandon, kContinue, kPin, kFlush, kHold, kRestore };
  Kind kind = kPlan;
  int64_t now_us = 0;                // kAdd, kPlan, kCommit
  uint64_t seq_id = 0;               // kAdd, kRemove, kContinue, kHold
  uint64_t fork_of = 0;              // kAdd; 0: none
  SequenceSpec spec = {};            // kAdd; kPin: prompt and salt; kRestore: how long it is wanted
  bool pinned = false;               // kPin; kHold
  TierBlock restored = {};           // kRestore
  std::vector<ResultRow> rows = {};  // kCommit, as the next two
  std::vector<AcceptedToken> accepted = {};
  int64_t draft_us = 0;
  bool one_off = false;
  int32_t num_kept = 0;              // kContinue
  std::vector<int32_t> tokens = {};  // kContinue
  std::vector<int32_t> banned = {};  // kContinue
};

struct SchedulerTrace {
  std::vector<SchedulerEvent> events;

  void Added(const Sequence& seq, int64_t now_us, const Sequence* fork_of);  // before its prompt moves
  void Removed(const Sequence& seq);
  void Continued(const Sequence& seq, int32_t num_kept, std::span<const int32_t> tokens, std::span<const int32_t> banned);
  void Planned(int64_t now_us);
  void Committed(const StepResult& result, int64_t now_us);
  void Abandoned();
  void Pinned(std::span<const int32_t> prompt_ids, const std::string& cache_salt, bool pinned);
  void Flushed();
  void Held(const Sequence& seq, bool held);
  void Restored(const TierBlock& wanted, const KeepTerms& terms);
};

// The plans, empty ones included, that a scheduler makes of the trace. Other options than those of the record
// give other plans, to which the results do not belong: that is an error.
Result<std::vector<StepPlan>> ReplayTrace(const SchedulerTrace& trace, SchedulerLimits limits,
                                          const SchedulerOptions& options,
                                          std::unique_ptr<SchedulingPolicy> policy);

}  // namespace cachalot
