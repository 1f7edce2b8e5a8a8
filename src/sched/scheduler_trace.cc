#include "sched/scheduler_trace.h"

#include <algorithm>
#include <map>

#include "sched/scheduler.h"

namespace cachalot {

void SchedulerTrace::Added(const Sequence& seq, int64_t now_us, const Sequence* fork_of) {
  SchedulerEvent& event = events.emplace_back();
  event.kind = SchedulerEvent::kAdd;
  event.now_us = now_us;
  event.seq_id = seq.id;
  event.fork_of = fork_of == nullptr ? 0 : fork_of->id;
  event.spec = seq.spec;
}

void SchedulerTrace::Removed(const Sequence& seq) {
  SchedulerEvent& event = events.emplace_back();
  event.kind = SchedulerEvent::kRemove;
  event.seq_id = seq.id;
}

void SchedulerTrace::Continued(const Sequence& seq, int32_t num_kept, std::span<const int32_t> tokens,
                               std::span<const int32_t> banned) {
  SchedulerEvent& event = events.emplace_back();
  event.kind = SchedulerEvent::kContinue;
  event.seq_id = seq.id;
  event.num_kept = num_kept;
  event.tokens.assign(tokens.begin(), tokens.end());
  event.banned.assign(banned.begin(), banned.end());
}

void SchedulerTrace::Planned(int64_t now_us) {
  SchedulerEvent& event = events.emplace_back();
  event.kind = SchedulerEvent::kPlan;
  event.now_us = now_us;
}

void SchedulerTrace::Committed(const StepResult& result, int64_t now_us) {
  SchedulerEvent& event = events.emplace_back();
  event.kind = SchedulerEvent::kCommit;
  event.now_us = now_us;
  event.rows = result.rows;
  event.accepted = result.accepted;
  event.draft_us = result.draft_us;
  event.one_off = result.one_off;
}

void SchedulerTrace::Abandoned() {
  events.emplace_back().kind = SchedulerEvent::kAbandon;
}

void SchedulerTrace::Pinned(std::span<const int32_t> prompt_ids, const std::string& cache_salt, bool pinned) {
  SchedulerEvent& event = events.emplace_back();
  event.kind = SchedulerEvent::kPin;
  event.spec.prompt_ids.assign(prompt_ids.begin(), prompt_ids.end());
  event.spec.cache_salt = cache_salt;
  event.pinned = pinned;
}

void SchedulerTrace::Flushed() {
  events.emplace_back().kind = SchedulerEvent::kFlush;
}

void SchedulerTrace::Held(const Sequence& seq, bool held) {
  SchedulerEvent& event = events.emplace_back();
  event.kind = SchedulerEvent::kHold;
  event.seq_id = seq.id;
  event.pinned = held;
}

void SchedulerTrace::Restored(const TierBlock& wanted, const KeepTerms& terms) {
  SchedulerEvent& event = events.emplace_back();
  event.kind = SchedulerEvent::kRestore;
  event.restored = wanted;
  event.spec.keep = terms;
}

namespace {

// Drafts that were in flight when a row was planned may have been wrong, too.
bool IsResultOf(const PlanRow& planned, const ResultRow& row) {
  const int32_t most = planned.num_computed + planned.q_len;
  const int32_t drafts = planned.num_drafts + (planned.token_begin < 0 ? kMaxDrafts : 0);
  return row.slot == planned.slot && row.num_computed <= most && row.num_computed >= most - drafts;
}

}  // namespace

Result<std::vector<StepPlan>> ReplayTrace(const SchedulerTrace& trace, SchedulerLimits limits,
                                          const SchedulerOptions& options,
                                          std::unique_ptr<SchedulingPolicy> policy) {
  ASSIGN_OR_RETURN(auto scheduler, Scheduler::Create(std::move(limits), options, std::move(policy)));
  std::map<uint64_t, std::unique_ptr<Sequence>> live;
  std::vector<StepPlan> plans;
  std::vector<size_t> in_flight;  // of `plans`, oldest first
  for (size_t i = 0; i < trace.events.size(); ++i) {
    const SchedulerEvent& event = trace.events[i];
    switch (event.kind) {
      case SchedulerEvent::kAdd: {
        RETURN_IF_ERROR(scheduler->CanAdd(event.spec).WithContext(fmt::format("event {}", i)));
        auto& seq = live[event.seq_id] = std::make_unique<Sequence>(event.seq_id, event.spec);
        const auto parent = live.find(event.fork_of);
        scheduler->Add(seq.get(), event.now_us, parent == live.end() ? nullptr : parent->second.get());
        break;
      }
      case SchedulerEvent::kRemove: {
        const auto found = live.find(event.seq_id);
        if (found == live.end())
          return InvalidArgument("event {}: sequence {} is not there", i, event.seq_id);
        scheduler->Remove(found->second.get());
        live.erase(found);
        break;
      }
      case SchedulerEvent::kContinue: {
        const auto found = live.find(event.seq_id);
        if (found == live.end())
          return InvalidArgument("event {}: sequence {} is not there", i, event.seq_id);
        scheduler->Continue(found->second.get(), event.num_kept, event.tokens, event.banned);
        break;
      }
      case SchedulerEvent::kPlan:
        plans.emplace_back();
        scheduler->Plan(&plans.back(), event.now_us);
        if (!plans.back().empty()) in_flight.push_back(plans.size() - 1);
        break;
      case SchedulerEvent::kCommit: {
        if (in_flight.empty()) return InvalidArgument("event {}: a result, and no step is in flight", i);
        const StepPlan& plan = plans[in_flight.front()];
        if (!std::equal(plan.rows.begin(), plan.rows.end(), event.rows.begin(), event.rows.end(),
                        IsResultOf)) {
          return InvalidArgument("event {}: the result is not that of step {}", i, plan.step_id);
        }
        StepResult result;
        result.step_id = plan.step_id;
        result.rows = event.rows;
        result.accepted = event.accepted;
        result.draft_us = event.draft_us;
        result.one_off = event.one_off;
        in_flight.erase(in_flight.begin());
        scheduler->Commit(result, event.now_us);
        break;
      }
      case SchedulerEvent::kAbandon:
        in_flight.clear();
        scheduler->Abandon();
        break;
      case SchedulerEvent::kPin:
        scheduler->PinPrefix(event.spec.prompt_ids, event.spec.cache_salt, event.pinned);
        break;
      case SchedulerEvent::kFlush:
        scheduler->FlushCache();
        break;
      case SchedulerEvent::kHold: {
        const auto found = live.find(event.seq_id);
        if (found == live.end())
          return InvalidArgument("event {}: sequence {} is not there", i, event.seq_id);
        scheduler->Hold(found->second.get(), event.pinned);
        break;
      }
      case SchedulerEvent::kRestore:
        scheduler->Restore(event.restored, event.spec.keep);
        break;
    }
  }
  return plans;
}

}  // namespace cachalot
