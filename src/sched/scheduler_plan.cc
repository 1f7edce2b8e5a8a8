// Scheduler::Plan, from the budget to the rows.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "sched/scheduler.h"

namespace cachalot {

void Scheduler::Plan(StepPlan* plan, int64_t now_us) {
  if (trace_ != nullptr) trace_->Planned(now_us);
  CHECK(num_in_flight_ <= limits_.depth)
      << num_in_flight_ << " steps are in flight, the last is " << step_id_;
  ReserveFor(plan);
  plan->Clear();
  plan->step_id = step_id_ + 1;
  now_us_ = now_us;
  blocks_.SetTime(now_us);
  step_ = &InFlight(num_in_flight_);
  step_->step_id = plan->step_id;
  step_->planned_us = now_us;
  step_->num_prompt_tokens = step_->num_decode_tokens = 0;
  step_->prompt_context = 0;
  step_->num_drafted = step_->max_drafts = 0;
  step_->awaited = std::exchange(awaits_tokens_, false);
  step_->rows.clear();
  budget_left_ = step_budget_;
  logit_rows_left_ = limits_.max_logit_rows;

  Displace(plan);
  ShareBudget();
  GrantMemory(plan);
  GrantDrafts(plan);
  AddRunningRows(plan);
  Admit(plan);

  if (plan->empty()) return;
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
  plan->context_ids.reserve(max_rows * static_cast<size_t>(limits_.draft_context));
  plan->setups.reserve(max_rows);
  plan->stop_ids.reserve(max_rows * static_cast<size_t>(kMaxDeviceStopIds));
}

// Decodes first; max_running_ and num_running_logits_ are such that each gets its token. What prompts take
// beside them is bounded, so that it does not last too long.
void Scheduler::ShareBudget() {
  int32_t num_decoding = 0;
  int32_t context = 0;  // how far into its prompt the one is that is furthest of those who run: its tokens cost the most
  for (Sequence* seq : running_) {
    seq->num_drafts = 0;
    if (seq->device_has_last_token) {
      Take(seq);
      ++num_decoding;
    } else {
      context = std::max(context, seq->num_computed);
    }
  }
  if (drafts_ != nullptr) ChooseDrafts();
  if (budget_left_ < step_budget_) budget_left_ = std::min(budget_left_, itl_.PromptTokens(context, ManyPrompts(num_decoding)));
  if (num_decoding == num_running()) return;
  for (Sequence* seq : running_) {
    if (!seq->device_has_last_token) Take(seq);
  }
}

// More than half of those that decode, or a sixteenth and 4: bounding them would keep all of them waiting for long, and
// leave the places of those that decode empty.
bool Scheduler::ManyPrompts(int32_t num_decoding) const {
  const auto num_prompts = static_cast<int64_t>(running_.size() + waiting_.size()) - num_decoding;
  return num_prompts > std::max<int64_t>(1, std::min(num_decoding / 2, 4 + num_decoding / 16));
}

// Whoever decodes and may be drafted for, and how many tokens could be. What the host drafts continues tokens that it
// knows: all of a sequence's, or (`known` false) as if those were all.
void Scheduler::FindCandidates(bool known) {
  candidates_.clear();
  candidate_seqs_.clear();
  const int32_t room = DraftRoom();
  for (Sequence* seq : running_) {
    if (!seq->device_has_last_token || (known && seq->q_len == 0)) continue;
    // The last token that may be generated is never computed; logits of every position must be of tokens that stay.
    const int32_t most = std::min({options_.max_drafts, seq->max_total - seq->num_computed - 2, max_q_len_ - 1, room});
    if (most <= 0 || seq->wants_logits()) continue;
    const std::span<int32_t> ids(draft_ids_.data() + seq->slot * options_.max_drafts, static_cast<size_t>(most));
    const bool can = drafts_->on_device() || !known || seq->num_sampling == 0;
    candidates_.push_back({.record = &seq->draft_record, .available = can ? drafts_->Propose(seq->tokens, ids) : 0});
    candidate_seqs_.push_back(seq);
  }
}

bool Scheduler::AwaitsTokens() {
  awaits_tokens_ = false;
  if (num_in_flight_ == 0 || drafts_ == nullptr || drafts_->on_device() || !depths_.CanPay() || !depths_.Considers()) return false;
  const auto num_decoding = std::count_if(running_.begin(), running_.end(), [](const Sequence* seq) { return seq->device_has_last_token; });
  budget_left_ = step_budget_;
  FindCandidates(/*known=*/false);
  awaits_tokens_ = depths_.WouldDraft(candidates_, static_cast<int32_t>(num_decoding), DraftRoom());
  return awaits_tokens_;
}

// At most half of what is left when everyone who runs has a token goes to drafts.
void Scheduler::ChooseDrafts() {
  const auto num_decoding = std::count_if(running_.begin(), running_.end(), [](const Sequence* seq) {
    return seq->device_has_last_token && seq->q_len > 0;
  });
  candidates_.clear();
  if (num_decoding == 0) return;
  if (!depths_.Considers()) return depths_.Skip();
  const int32_t room = DraftRoom();
  FindCandidates(/*known=*/true);
  depths_.Choose(candidates_, static_cast<int32_t>(num_decoding), room);
  for (size_t i = 0; i < candidates_.size(); ++i) {
    Sequence* seq = candidate_seqs_[i];
    seq->num_drafts = candidates_[i].depth;
    budget_left_ -= candidates_[i].depth;
    if (drafts_->on_device() || limits_.accepts_by_lot || candidates_[i].available == 0 || candidates_[i].depth > 0) continue;
    seq->draft_guess = draft_ids_[static_cast<size_t>(seq->slot * options_.max_drafts)];
    seq->draft_guess_at = seq->num_tokens();
  }
}

// How many tokens of `seq`, of which num_computed are computed, this step can compute with what is left.
int32_t Scheduler::Share(const Sequence& seq, int32_t num_computed) const {
  int32_t q_len = std::min({seq.num_computable() - num_computed, max_q_len_, budget_left_});
  if (seq.only_tokens) return q_len;
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
    if (blocks_.GrowInPlace(seq->slot, num_tokens)) continue;
    KvFit fit = blocks_.CanAllocate(seq->slot, num_tokens);
    while (fit == KvFit::kNever) {
      const std::span<Sequence* const> candidates(running_.data() + i, running_.size() - i);
      const size_t victim_idx = policy_->ChooseVictim(candidates);
      Sequence* victim = candidates[victim_idx];
      CHECK(victim_idx > 0 || candidates.size() == 1) << "the policy preempts the first of several";
      CHECK(running_.size() > 1) << "sequence " << seq->id << " does not fit alone: a leak of KV blocks";
      running_.erase(running_.begin() + static_cast<ptrdiff_t>(i + victim_idx));
      Preempt(victim, plan);
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

// When everyone has the memory that it needs: drafts take none from anybody.
void Scheduler::GrantDrafts(StepPlan* plan) {
  if (candidates_.empty()) return;
  for (Sequence* seq : running_) {
    if (seq->num_drafts == 0) continue;
    const int32_t num_tokens = seq->num_computed + seq->q_len + seq->num_drafts;
    if (seq->q_len == 0 || blocks_.CanAllocate(seq->slot, num_tokens) != KvFit::kNow) {
      seq->num_drafts = 0;
      continue;
    }
    blocks_.Allocate(seq->slot, num_tokens, plan->step_id, &plan->block_writes, &plan->block_copies);
    seq->q_len += seq->num_drafts;
  }
}

void Scheduler::AddRunningRows(StepPlan* plan) {
  bool prompts = false;
  for (Sequence* seq : running_) {
    if (!seq->device_has_last_token) prompts = true;
    else if (seq->q_len > 0) AddRow(seq, plan);
  }
  if (!prompts) return;
  for (Sequence* seq : running_) {
    if (!seq->device_has_last_token && seq->q_len > 0) AddRow(seq, plan);
  }
}

void Scheduler::AddOutputs(const Sequence& seq, PlanRow* row) const {
  const SequenceSpec& spec = seq.spec;
  const bool is_new = seq.num_computed >= seq.num_reported;
  if ((row->outputs & kOutputSample) && spec.num_top_logprobs >= 0) {
    row->outputs |= kOutputTopLogprobs;
    row->num_top_logprobs = spec.num_top_logprobs;
  }
  // Position p brings log p(prompt[p + 1]), so the prompt's last position has none.
  if (spec.prompt_logprobs && is_new && seq.num_computed < seq.num_prompt - 1) {
    row->outputs |= kOutputPromptLogprobs;
    row->num_prompt_top_logprobs = spec.num_prompt_top_logprobs;
  }
  if (spec.all_logits && is_new) row->outputs |= kOutputAllLogits;
  if (spec.mtp_logits) row->outputs |= kOutputMtp;
}

void Scheduler::AddRow(Sequence* seq, StepPlan* plan) {
  const int32_t end = seq->num_computed + seq->q_len;
  PlanRow row{.slot = seq->slot, .q_len = seq->q_len, .num_computed = seq->num_computed, .num_drafts = seq->num_drafts};
  const int32_t known_end = end - seq->num_drafts;
  if (seq->num_drafts > 0) {
    if (!drafts_->on_device()) {
      row.token_begin = static_cast<int32_t>(plan->token_ids.size());
      plan->token_ids.push_back(seq->tokens.back());
      const auto ids = draft_ids_.begin() + seq->slot * options_.max_drafts;
      plan->token_ids.insert(plan->token_ids.end(), ids, ids + seq->num_drafts);
    }
    ++step_->num_drafted;
    step_->max_drafts = std::max(step_->max_drafts, seq->num_drafts);
  } else if (!seq->device_has_last_token) {
    row.token_begin = static_cast<int32_t>(plan->token_ids.size());
    plan->token_ids.insert(plan->token_ids.end(), seq->tokens.begin() + seq->num_computed,
                           seq->tokens.begin() + end);
  }
  if (end < seq->num_tokens()) row.next_token = seq->tokens[static_cast<size_t>(end)];
  const bool samples = known_end == seq->num_total() && seq->num_total() < seq->max_total;
  if (samples) row.outputs |= kOutputSample;
  if (!seq->only_tokens) AddOutputs(*seq, &row);
  plan->rows.push_back(row);
  step_->rows.push_back({.seq = seq,
                         .slot = seq->slot,
                         .num_computed = end,
                         .num_drafts = seq->num_drafts,
                         .samples = samples,
                         .num_new = std::max(0, end - std::max(seq->num_computed, seq->num_reported))});
  (seq->device_has_last_token ? step_->num_decode_tokens : step_->num_prompt_tokens) += seq->q_len;
  if (!seq->device_has_last_token) step_->prompt_context += int64_t{seq->q_len} * (2 * seq->num_computed + seq->q_len) / 2;
  seq->num_computed = end;
  seq->num_reported = std::max(seq->num_reported, end);
  seq->last_step = plan->step_id;
  seq->device_has_last_token = samples;
  seq->num_sampling += samples ? 1 + seq->num_drafts : 0;
  seq->num_unsure += seq->num_drafts;
  ++seq->num_in_flight;
}

}  // namespace cachalot
