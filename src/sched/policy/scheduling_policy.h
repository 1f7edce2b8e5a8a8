// SchedulingPolicy: who goes first and who gives way. One file per policy beside this one, one row in
// policies.cc. What the scheduler's promise of progress rests on: Before is a strict total order that does
// not change while a sequence waits or runs, and the victim is never the first of the candidates unless it
// stands alone.
#pragma once

#include <cstddef>
#include <span>

#include "sched/sequence.h"

namespace cachalot {

class SchedulingPolicy {
 public:
  virtual ~SchedulingPolicy() = default;
  // Order of the waiting queue, and of who gets memory first among the running.
  virtual bool Before(const Sequence& a, const Sequence& b) const = 0;
  // The KV cache is exhausted and candidates[0] needs more: which of the candidates (in Before order) is
  // preempted?
  virtual size_t ChooseVictim(std::span<Sequence* const> candidates) const { return candidates.size() - 1; }
  // `newcomer` finds no place: may `running`, which is behind it in order, be preempted for it?
  virtual bool MayDisplace(const Sequence& newcomer, const Sequence& running) const { return false; }

  // A sequence arrives (it may be given an `order` now, and keeps it), is admitted for the first time,
  // leaves.
  virtual void OnAdd(Sequence* seq) {}
  virtual void OnAdmit(const Sequence& seq) {}
  virtual void OnRemove(const Sequence& seq) {}
};

}  // namespace cachalot
