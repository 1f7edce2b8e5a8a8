// Scheduler: who enters. From the head of the waiting queue to the slot, its setup and its first row.
#include <algorithm>

#include "base/check.h"
#include "sched/scheduler.h"

namespace cachalot {
namespace {

constexpr int32_t kMaxAside = 64;  // newcomers that are passed over in one step; each costs a look

// What is banned at one position only. What counts for longer is left out behind it: the sequence is then set up anew.
void Ban(const Sequence& seq, SamplingConfig* sampling) {
  if (sampling->suppressed_until <= seq.banned_at) sampling->suppressed_ids.clear();
  for (const int32_t id : seq.banned_ids) {
    const auto& ids = sampling->suppressed_ids;
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) sampling->suppressed_ids.push_back(id);
  }
  sampling->suppressed_until = seq.banned_at + 1;
}

}  // namespace

// It shares a prompt that another sequence is about to compute. In this step is too late: blocks are copied
// before.
bool Scheduler::WaitsForPrompt(const Sequence& seq) const {
  if (seq.fork_of == nullptr) return false;
  const Sequence& other = *seq.fork_of;
  const int32_t in_this_step = other.last_step == step_->step_id ? other.q_len : 0;
  return other.num_computed - in_this_step < seq.num_prompt;
}

Sequence* Scheduler::Head() const {
  for (size_t i = waiting_.size(); i-- > 0;) {
    if (!StandsAside(*waiting_[i])) return waiting_[i];
  }
  return nullptr;
}

// A newcomer without a place takes that of those who must give way to it, from the last in order.
void Scheduler::Displace(StepPlan* plan) {
  while (!running_.empty()) {
    Sequence* newcomer = Head();
    Sequence* last = running_.back();
    if (newcomer == nullptr || newcomer->num_in_flight > 0 || !policy_->MayDisplace(*newcomer, *last)) return;
    if (newcomer->wants_logits() && num_running_logits_ == limits_.max_logit_rows) return;
    SumPromises();
    if (CanAdmit(*newcomer, FindStart(newcomer), /*soon=*/true)) return;
    running_.pop_back();
    Preempt(last, plan);
  }
}

// In order, and nobody overtakes: a large request would wait for ever. (Who waits for what another computes
// stands aside: that one advances, and then it is at the head again.)
void Scheduler::Admit(StepPlan* plan) {
  if (waiting_.empty() || num_running() == max_running_ || budget_left_ == 0) return;
  SumPromises();
  int32_t num_aside = 0;
  for (size_t i = waiting_.size(); i-- > 0 && num_aside < kMaxAside;) {
    Sequence* seq = waiting_[i];
    const Start start = StandsAside(*seq) ? Start{} : FindStart(seq);
    if (StandsAside(*seq) || WaitsForPrefix(*seq, start)) {
      ++num_aside;
      continue;
    }
    if (!CanAdmit(*seq, start, /*soon=*/false)) break;
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
    Enter(seq, start, plan);
    Take(seq);
    blocks_.Allocate(seq->slot, seq->num_computed + seq->q_len, plan->step_id, &plan->block_writes,
                     &plan->block_copies);
    PromiseMemory(*seq);
    AddRow(seq, plan);
  }
}

// Somebody who runs is about to publish what it would otherwise compute itself, and that is much.
bool Scheduler::WaitsForPrefix(const Sequence& seq, const Start& start) const {
  if (start.kind != Start::kPrefix || seq.page_keys.empty()) return false;
  const auto first = static_cast<size_t>(start.num_computed / blocks_.page_tokens());
  for (const Sequence* other : running_) {
    size_t page = first;
    const size_t end = std::min(seq.page_keys.size(), other->page_keys.size());
    if (other->num_published > first || page >= end) continue;
    while (page < end && seq.page_keys[page] == other->page_keys[page]) ++page;
    if (static_cast<int64_t>(page - first) * blocks_.page_tokens() >= options_.await_prefix_tokens)
      return true;
  }
  return false;
}

void Scheduler::SumPromises() {
  std::fill(promised_.begin(), promised_.end(), 0);
  for (const Sequence* seq : running_) PromiseMemory(*seq);
}

void Scheduler::PromiseMemory(const Sequence& seq) {
  for (int32_t g = 0; g < blocks_.num_groups(); ++g) {
    const int32_t missing =
        blocks_.PeakBlocks(g, seq.num_total(), max_q_len_) - blocks_.table(seq.slot, g).num_held();
    promised_[static_cast<size_t>(g)] += std::max(0, missing);
  }
}

// Everything that runs can finish the tokens it holds, and has a reserve to grow into. Nothing runs: it fits,
// by CanAdd. soon: when the steps in flight are committed.
bool Scheduler::CanAdmit(const Sequence& seq, const Start& start, bool soon) const {
  // A row in flight may bring another token (it was preempted meanwhile).
  if (num_running() == max_running_ || seq.num_in_flight > 0 || Share(seq, start.num_computed) == 0)
    return false;
  if (seq.wants_logits() && num_running_logits_ == limits_.max_logit_rows) return false;
  for (int32_t g = 0; g < blocks_.num_groups(); ++g) {
    const BlockPool& pool = blocks_.pool(g);
    const int64_t reserve = int64_t{options_.reserve_blocks_per_seq} * num_running();
    const int64_t free =
        pool.num_free() + (soon ? pool.num_pending() : 0) - promised_[static_cast<size_t>(g)] - reserve;
    const int64_t missing = blocks_.PeakBlocks(g, seq.num_tokens(), max_q_len_) - free;
    if (missing > 0 && missing > CountShared(g, seq, start)) return false;
  }
  return true;
}

// With what is there already: its own on the host, another's prompt, or what the prefix cache has.
Scheduler::Start Scheduler::FindStart(Sequence* seq) const {
  if (!seq->swapped.empty()) return {.kind = Start::kSwapped, .num_computed = seq->num_computed};
  if (seq->fork_of != nullptr && seq->fork_of->state == SequenceState::kRunning &&
      blocks_.CanFork(seq->fork_of->slot, seq->num_prompt - 1)) {
    return {.kind = Start::kForked, .num_computed = seq->num_prompt - 1};
  }
  return {.kind = Start::kPrefix, .num_computed = FindPrefix(seq)};
}

// How many of its first tokens need not be computed. One always is, for its logits; and what the owner wants
// from every position must be computed once, what the MTP layer needs each time.
int32_t Scheduler::MostCached(const Sequence& seq) const {
  if (!options_.enable_prefix_caching || seq.spec.mtp_logits || seq.num_in_flight > 0) return 0;
  const int32_t most = seq.num_tokens() - 1;
  return seq.spec.all_logits || seq.spec.prompt_logprobs ? std::min(most, seq.num_reported) : most;
}

int32_t Scheduler::FindPrefix(Sequence* seq) const {
  const int32_t most = MostCached(*seq);
  if (most < blocks_.page_tokens()) return 0;
  ExtendKeys(seq, most);
  return blocks_.FindPrefix(seq->page_keys, most);
}

// Blocks that it needs and others hold already.
int32_t Scheduler::CountShared(int32_t group, const Sequence& seq, const Start& start) const {
  if (start.kind == Start::kForked) return blocks_.CountForked(group, start.num_computed);
  if (start.kind == Start::kSwapped || start.num_computed == 0) return 0;
  return blocks_.CountHeld(group, seq.page_keys, start.num_computed);
}

void Scheduler::Enter(Sequence* seq, const Start& start, StepPlan* plan) {
  seq->state = SequenceState::kRunning;
  seq->num_drafts = 0;
  seq->slot = free_slots_.back();
  free_slots_.pop_back();
  if (seq->wants_logits()) ++num_running_logits_;
  seq->tokens.reserve(static_cast<size_t>(seq->max_total));
  seq->page_keys.reserve(static_cast<size_t>(seq->max_total / blocks_.page_tokens()));
  TakeStart(seq, start, plan);
  if (seq->num_cached < 0) CountAdmission(seq, start);
  running_.insert(
      std::upper_bound(running_.begin(), running_.end(), seq,
                       [this](const Sequence* a, const Sequence* b) { return policy_->Before(*a, *b); }),
      seq);

  SlotSetup setup{.slot = seq->slot, .sampling = seq->spec.sampling};
  if (!seq->banned_ids.empty() && seq->num_tokens() == seq->banned_at) Ban(*seq, &setup.sampling);
  setup.history_begin = static_cast<int32_t>(plan->history_ids.size());
  if (seq->spec.sampling.has_penalties()) {
    setup.history_len = seq->num_tokens();
    setup.history_num_prompt = seq->num_prompt;
    plan->history_ids.insert(plan->history_ids.end(), seq->tokens.begin(), seq->tokens.end());
  }
  const auto& stops = seq->spec.stop_ids;
  setup.stop_begin = static_cast<int32_t>(plan->stop_ids.size());
  setup.stop_len = static_cast<int32_t>(std::min<size_t>(stops.size(), kMaxDeviceStopIds));
  plan->stop_ids.insert(plan->stop_ids.end(), stops.begin(), stops.begin() + setup.stop_len);
  setup.context_begin = static_cast<int32_t>(plan->context_ids.size());
  setup.context_len = std::min(seq->num_computed, limits_.draft_context);
  const auto context_end = seq->tokens.begin() + seq->num_computed;
  plan->context_ids.insert(plan->context_ids.end(), context_end - setup.context_len, context_end);
  plan->setups.push_back(std::move(setup));
}

void Scheduler::TakeStart(Sequence* seq, const Start& start, StepPlan* plan) {
  if (start.kind == Start::kSwapped) {
    blocks_.SwapIn(seq->slot, plan->step_id, &seq->swapped, &plan->block_writes, &plan->swap_ins);
  } else if (start.kind == Start::kForked) {
    blocks_.Fork(seq->fork_of->slot, seq->slot, start.num_computed, &plan->block_writes);
  } else if (start.num_computed > 0) {
    blocks_.TakePrefix(seq->slot, seq->page_keys, start.num_computed, &plan->block_writes,
                       TermsOf(*seq, /*again=*/seq->num_cached >= 0));
    seq->num_published = static_cast<size_t>(start.num_computed / blocks_.page_tokens());
    seq->num_counted = std::max(seq->num_counted, seq->num_published);
  }
  seq->num_computed = start.num_computed;
  seq->num_reported = std::max(seq->num_reported, start.num_computed);
  LeaveFork(seq);
}

void Scheduler::CountAdmission(Sequence* seq, const Start& start) {
  const bool asked = start.kind == Start::kPrefix;
  seq->num_cached = asked ? start.num_computed : 0;
  seq->admitted_us = now_us_;
  counters_.cache_query_tokens += asked ? seq->num_tokens() : 0;
  counters_.cache_hit_tokens += seq->num_cached;
  ++counters_.admitted;
  counters_.queue_us += now_us_ - seq->added_us;
  policy_->OnAdmit(*seq);
}

void Scheduler::LeaveFork(Sequence* seq) {
  if (seq->fork_of == nullptr) return;
  --seq->fork_of->num_waiting_forks;
  seq->fork_of = nullptr;
}

}  // namespace cachalot
