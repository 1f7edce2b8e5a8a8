// Scheduler::Plan, from the budget to the rows.
#include <algorithm>

#include "base/check.h"
#include "sched/scheduler.h"

namespace cachalot {

void Scheduler::Plan(StepPlan* plan) {
  CHECK(num_in_flight_ <= limits_.depth)
      << num_in_flight_ << " steps are in flight, the last is " << step_id_;
  ReserveFor(plan);
  plan->Clear();
  plan->step_id = step_id_ + 1;
  step_ = &InFlight(num_in_flight_);
  step_->step_id = plan->step_id;
  step_->rows.clear();
  budget_left_ = step_budget_;
  logit_rows_left_ = limits_.max_logit_rows;

  ShareBudget();
  GrantMemory(plan);
  AddRunningRows(plan);
  Admit(plan);

  if (plan->rows.empty()) return;
  step_id_ = plan->step_id;
  ++num_in_flight_;
}

void Scheduler::ReserveFor(StepPlan* plan) const {
  const size_t max_rows = static_cast<size_t>(max_running_);
  size_t max_writes = 0;
  for (const KvGroupInfo& group : limits_.kv_groups) {
    max_writes += max_rows + static_cast<size_t>(step_budget_ / group.block_tokens);
  }
  plan->rows.reserve(max_rows);
  plan->token_ids.reserve(static_cast<size_t>(step_budget_));
  plan->block_writes.reserve(max_writes);
  plan->block_copies.reserve(max_rows * limits_.kv_groups.size());
  plan->setups.reserve(max_rows);
  plan->stop_ids.reserve(max_rows * static_cast<size_t>(kMaxDeviceStopIds));
}

// Decodes first; max_running_ and num_running_logits_ are such that each gets its token.
void Scheduler::ShareBudget() {
  for (const bool decodes : {true, false}) {
    for (Sequence* seq : running_) {
      if (seq->device_has_last_token == decodes) Take(seq);
    }
  }
}

// How many tokens of `seq`, of which num_computed are computed, this step can compute with what is left.
int32_t Scheduler::Share(const Sequence& seq, int32_t num_computed) const {
  int32_t q_len = std::min({seq.num_computable() - num_computed, max_q_len_, budget_left_});
  const bool again = num_computed < seq.num_reported;
  // A row is reported wholly or not at all, so it ends where the reported positions end.
  if (again && (seq.wants_logits() || seq.spec.prompt_logprobs)) {
    q_len = std::min(q_len, seq.num_reported - num_computed);
  }
  // The MTP layer needs its KV computed again; the logits are not needed, but come with it.
  if (seq.spec.mtp_logits || (seq.spec.all_logits && !again)) q_len = std::min(q_len, logit_rows_left_);
  return q_len;
}

void Scheduler::Take(Sequence* seq) {
  seq->q_len = Share(*seq, seq->num_computed);
  budget_left_ -= seq->q_len;
  if (seq->wants_logits()) logit_rows_left_ -= std::min(seq->q_len, logit_rows_left_);
}

// From the first to the last in the policy's order, so that whoever is preempted has nothing in the plan yet.
void Scheduler::GrantMemory(StepPlan* plan) {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence* seq = running_[i];
    if (seq->q_len == 0) continue;
    const int32_t num_tokens = seq->num_computed + seq->q_len;
    DropBehindWindow(seq);
    KvFit fit = blocks_.CanAllocate(seq->slot, num_tokens);
    while (fit == KvFit::kNever) {
      const std::span<Sequence* const> candidates(running_.data() + i, running_.size() - i);
      const size_t victim_idx = policy_->ChooseVictim(candidates);
      Sequence* victim = candidates[victim_idx];
      CHECK(victim_idx > 0 || candidates.size() == 1) << "the policy preempts the first of several";
      CHECK(running_.size() > 1) << "sequence " << seq->id << " does not fit alone: a leak of KV blocks";
      running_.erase(running_.begin() + static_cast<ptrdiff_t>(i + victim_idx));
      Preempt(victim);
      if (victim == seq) return;  // nobody is behind it
      fit = blocks_.CanAllocate(seq->slot, num_tokens);
    }
    if (fit == KvFit::kNow) {
      blocks_.Allocate(seq->slot, num_tokens, plan->step_id, &plan->block_writes, &plan->block_copies);
    } else {
      seq->q_len = 0;  // its turn comes when the steps in flight are committed
    }
  }
}

void Scheduler::AddRunningRows(StepPlan* plan) {
  for (const bool decodes : {true, false}) {
    for (Sequence* seq : running_) {
      if (seq->device_has_last_token == decodes && seq->q_len > 0) AddRow(seq, plan);
    }
  }
}

// In order, and nobody overtakes: a large request would wait for ever.
void Scheduler::Admit(StepPlan* plan) {
  if (waiting_.empty() || num_running() == max_running_ || budget_left_ == 0) return;
  std::fill(promised_.begin(), promised_.end(), 0);
  for (const Sequence* seq : running_) PromiseMemory(*seq);
  while (!waiting_.empty()) {
    Sequence* seq = waiting_.back();
    const int32_t num_cached = FindPrefix(seq);
    if (!CanAdmit(*seq, num_cached)) break;
    waiting_.pop_back();
    Enter(seq, num_cached, plan);
    Take(seq);
    blocks_.Allocate(seq->slot, seq->num_computed + seq->q_len, plan->step_id, &plan->block_writes,
                     &plan->block_copies);
    PromiseMemory(*seq);
    AddRow(seq, plan);
  }
}

void Scheduler::PromiseMemory(const Sequence& seq) {
  for (int32_t g = 0; g < blocks_.num_groups(); ++g) {
    const int32_t missing =
        blocks_.PeakBlocks(g, seq.num_total(), max_q_len_) - blocks_.table(seq.slot, g).num_held();
    promised_[static_cast<size_t>(g)] += std::max(0, missing);
  }
}

// Everything that runs can finish the tokens it holds, and has a reserve to grow into. Nothing runs: it fits,
// by CanAdd.
bool Scheduler::CanAdmit(const Sequence& seq, int32_t num_cached) const {
  // A row in flight may bring another token (it was preempted meanwhile).
  if (num_running() == max_running_ || seq.num_in_flight > 0 || Share(seq, num_cached) == 0) return false;
  if (seq.wants_logits() && num_running_logits_ == limits_.max_logit_rows) return false;
  for (int32_t g = 0; g < blocks_.num_groups(); ++g) {
    const int64_t reserve = int64_t{options_.reserve_blocks_per_seq} * num_running();
    const int64_t free = blocks_.pool(g).num_free() - promised_[static_cast<size_t>(g)] - reserve;
    const int64_t missing = blocks_.PeakBlocks(g, seq.num_tokens(), max_q_len_) - free;
    if (missing > 0 && (num_cached == 0 || missing > blocks_.CountHeld(g, seq.page_keys, num_cached)))
      return false;
  }
  return true;
}

// How many of its first tokens need not be computed. One always is, for its logits; and what the owner wants
// from every position must be computed once, what the MTP layer needs each time.
int32_t Scheduler::FindPrefix(Sequence* seq) const {
  if (!options_.enable_prefix_caching || seq->spec.mtp_logits || seq->num_in_flight > 0) return 0;
  int32_t most = seq->num_tokens() - 1;
  if (seq->spec.all_logits || seq->spec.prompt_logprobs) most = std::min(most, seq->num_reported);
  if (most < blocks_.page_tokens()) return 0;
  ExtendKeys(seq, most);
  return blocks_.FindPrefix(seq->page_keys, most);
}

void Scheduler::Enter(Sequence* seq, int32_t num_cached, StepPlan* plan) {
  seq->state = SequenceState::kRunning;
  seq->slot = free_slots_.back();
  free_slots_.pop_back();
  if (seq->wants_logits()) ++num_running_logits_;
  seq->tokens.reserve(static_cast<size_t>(seq->max_total));
  seq->page_keys.reserve(static_cast<size_t>(seq->max_total / blocks_.page_tokens()));
  if (num_cached > 0) {
    blocks_.TakePrefix(seq->slot, seq->page_keys, num_cached, &plan->block_writes);
    seq->num_computed = num_cached;
    seq->num_reported = std::max(seq->num_reported, num_cached);
    seq->num_published = static_cast<size_t>(num_cached / blocks_.page_tokens());
  }
  if (seq->num_cached < 0) {
    seq->num_cached = num_cached;
    num_cache_queries_ += seq->num_tokens();
    num_cache_hits_ += num_cached;
  }
  running_.insert(
      std::upper_bound(running_.begin(), running_.end(), seq,
                       [this](const Sequence* a, const Sequence* b) { return policy_->Before(*a, *b); }),
      seq);

  SlotSetup setup{.slot = seq->slot, .sampling = seq->spec.sampling};
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
  plan->setups.push_back(std::move(setup));
}

void Scheduler::AddRow(Sequence* seq, StepPlan* plan) {
  const SequenceSpec& spec = seq->spec;
  const int32_t end = seq->num_computed + seq->q_len;
  const bool is_new = seq->num_computed >= seq->num_reported;
  PlanRow row{.slot = seq->slot, .q_len = seq->q_len, .num_computed = seq->num_computed};
  if (!seq->device_has_last_token) {
    row.token_begin = static_cast<int32_t>(plan->token_ids.size());
    plan->token_ids.insert(plan->token_ids.end(), seq->tokens.begin() + seq->num_computed,
                           seq->tokens.begin() + end);
  }
  if (end < seq->num_tokens()) row.next_token = seq->tokens[static_cast<size_t>(end)];
  const bool samples = end == seq->num_total() && seq->num_total() < seq->max_total;
  if (samples) {
    row.outputs |= kOutputSample;
    if (spec.num_top_logprobs >= 0) {
      row.outputs |= kOutputTopLogprobs;
      row.num_top_logprobs = spec.num_top_logprobs;
    }
  }
  // Position p brings log p(prompt[p + 1]), so the prompt's last position has none.
  if (spec.prompt_logprobs && is_new && seq->num_computed < seq->num_prompt - 1)
    row.outputs |= kOutputPromptLogprobs;
  if (spec.all_logits && is_new) row.outputs |= kOutputAllLogits;
  if (spec.mtp_logits) row.outputs |= kOutputMtp;
  plan->rows.push_back(row);
  step_->rows.push_back({.seq = seq,
                         .slot = seq->slot,
                         .num_computed = end,
                         .samples = samples,
                         .num_new = std::max(0, end - std::max(seq->num_computed, seq->num_reported))});
  seq->num_computed = end;
  seq->num_reported = std::max(seq->num_reported, end);
  seq->last_step = plan->step_id;
  seq->device_has_last_token = samples;
  seq->num_sampling += samples ? 1 : 0;
  ++seq->num_in_flight;
}

}  // namespace cachalot
