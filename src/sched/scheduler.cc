#include "sched/scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "kv/policy/eviction_policies.h"

namespace cachalot {
namespace {

constexpr size_t kNear = 4, kFar = 10;  // rows ahead

}  // namespace

Result<std::unique_ptr<Scheduler>> Scheduler::Create(SchedulerLimits limits, SchedulerOptions options,
                                                     std::unique_ptr<SchedulingPolicy> policy) {
  RETURN_IF_ERROR(CheckSchedulerOptions(limits, options));
  ASSIGN_OR_RETURN(MakeEvictionPolicy make, FindEvictionPolicy(options.kv_policy, options.lru_k));
  if (!options.enable_prefix_caching) make = nullptr;
  return std::unique_ptr<Scheduler>(
      new Scheduler(std::move(limits), std::move(options), std::move(policy), make));
}

Scheduler::Scheduler(SchedulerLimits limits, SchedulerOptions options,
                     std::unique_ptr<SchedulingPolicy> policy, const MakeEvictionPolicy& make_eviction)
    : limits_(std::move(limits)),
      options_(options),
      policy_(std::move(policy)),
      blocks_(limits_.kv_groups, limits_.max_seqs, limits_.max_context, make_eviction,
              options.kv_tenant_floor),
      step_budget_(std::min(options.max_batch_tokens, limits_.max_step_tokens)),
      max_running_(std::min(limits_.max_seqs, step_budget_)),
      itl_(options.itl_target_us, options.min_prompt_tokens, step_budget_, options.itl_percent / 100.0),
      drafts_(MakeDraftSource(options.drafts)),
      depths_(options.adaptive_drafts, limits_.depth > 0,  // a device that is a step ahead captures its steps
              limits_.device_drafts == options.drafts ? limits_.draft_cost : 0) {
  const KvSequenceLimits alone = blocks_.SequenceLimits(std::min(options.prefill_chunk, step_budget_));
  max_q_len_ = alone.max_q_len;
  max_seq_tokens_ = alone.max_tokens;

  const size_t max_seqs = static_cast<size_t>(limits_.max_seqs);
  running_.reserve(max_seqs);
  steps_.resize(static_cast<size_t>(limits_.depth) + 1);
  for (PlannedStep& step : steps_) step.rows.reserve(max_seqs);
  abandoned_.reserve(max_seqs * steps_.size());
  free_slots_.reserve(max_seqs);
  for (int32_t slot = limits_.max_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  promised_.resize(limits_.kv_groups.size());
  if (drafts_ == nullptr) return;
  candidates_.reserve(max_seqs);
  candidate_seqs_.reserve(max_seqs);
  draft_ids_.resize(max_seqs * static_cast<size_t>(options_.max_drafts));
}

Status Scheduler::CanAdd(const SequenceSpec& spec) const {
  if (spec.prompt_ids.empty()) return InvalidArgument("the prompt is empty: at least one token is needed");
  if (spec.max_tokens < 0) return InvalidArgument("max_tokens is {}: must be at least 0", spec.max_tokens);
  const size_t num_prompt = spec.prompt_ids.size();
  const size_t room = static_cast<size_t>(max_seq_tokens_);
  const char* limit = max_seq_tokens_ < limits_.max_context ? "KV cache" : "context";
  if (num_prompt > room) {
    return InvalidArgument("the prompt has {} tokens: the {} holds {}", num_prompt, limit, room);
  }
  if (num_prompt == room && spec.max_tokens > 0) {
    return InvalidArgument("the prompt has {} tokens and fills the {} of {}: no room to generate", num_prompt,
                           limit, room);
  }
  if ((spec.all_logits || spec.mtp_logits) && limits_.max_logit_rows < 1) {
    return Unsupported("logits of every position: this executor was set up for 0 logit rows a step");
  }
  return Status::Ok();
}

void Scheduler::Add(Sequence* seq, int64_t now_us, Sequence* fork_of) {
  CHECK(seq->state == SequenceState::kNew && CanAdd(seq->spec).ok()) << "sequence " << seq->id;
  if (trace_ != nullptr) trace_->Added(*seq, now_us, fork_of);
  seq->added_us = now_us;
  seq->spec.keep.tenant = TenantId(seq->spec.tenant);
  seq->tokens = std::move(seq->spec.prompt_ids);
  seq->num_prompt = seq->num_tokens();
  seq->only_tokens = seq->spec.num_top_logprobs < 0 && !seq->spec.prompt_logprobs && !seq->spec.wants_logits();
  for (const int32_t id : seq->spec.stop_ids) seq->stop_bits |= uint64_t{1} << (static_cast<uint32_t>(id) % 64);
  seq->max_total = static_cast<int32_t>(
      std::min<int64_t>(int64_t{seq->num_prompt} + seq->spec.max_tokens, max_seq_tokens_));
  if (fork_of != nullptr && seq->num_prompt > 1) {
    CHECK(fork_of->num_prompt == seq->num_prompt && !seq->wants_logits() && !seq->spec.prompt_logprobs)
        << "sequence " << seq->id << " cannot be a fork of " << fork_of->id;
    seq->fork_of = fork_of;
    ++fork_of->num_waiting_forks;
  }
  policy_->OnAdd(seq);
  // Room for everything that may be pushed later, so that a preemption need not allocate.
  const size_t live = waiting_.size() + running_.size() + 1;
  if (waiting_.capacity() < live) waiting_.reserve(2 * live);
  PushWaiting(seq);
}

void Scheduler::Remove(Sequence* seq) {
  CHECK(seq->state != SequenceState::kNew) << "Remove of sequence " << seq->id << ", which was never added";
  if (trace_ != nullptr) trace_->Removed(*seq);
  for (int32_t age = 0; age < num_in_flight_; ++age) {
    for (ScheduledRow& row : InFlight(age).rows) {
      if (row.seq == seq) row.seq = nullptr;
    }
  }
  if (seq->state == SequenceState::kWaiting) {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), seq));
    blocks_.DropSwapped(&seq->swapped, seq->last_step);
  } else {
    running_.erase(std::find(running_.begin(), running_.end(), seq));
    LeaveSlot(seq);
  }
  seq->state = SequenceState::kNew;
  LeaveFork(seq);
  for (size_t i = 0; seq->num_waiting_forks > 0; ++i) {
    if (waiting_[i]->fork_of == seq) LeaveFork(waiting_[i]);
  }
  policy_->OnRemove(*seq);
}

void Scheduler::Continue(Sequence* seq, int32_t num_kept, std::span<const int32_t> tokens, std::span<const int32_t> banned) {
  CHECK(seq->state != SequenceState::kNew && !seq->wants_logits()) << "sequence " << seq->id;
  CHECK(num_kept >= seq->num_prompt && num_kept <= seq->num_tokens() &&
        num_kept + static_cast<int64_t>(tokens.size()) <= seq->max_total && (!tokens.empty() || num_kept < seq->max_total))
      << tokens.size() << " tokens behind " << num_kept << " of sequence " << seq->id;
  if (trace_ != nullptr) trace_->Continued(*seq, num_kept, tokens, banned);
  for (int32_t age = 0; age < num_in_flight_; ++age) {
    for (ScheduledRow& row : InFlight(age).rows) {
      if (row.seq == seq) row.seq = nullptr;
    }
  }
  seq->num_in_flight = seq->num_sampling = seq->num_unsure = 0;
  if (seq->state == SequenceState::kWaiting) {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), seq));
    blocks_.DropSwapped(&seq->swapped, seq->last_step);
    seq->num_computed = 0;
  } else {
    running_.erase(std::find(running_.begin(), running_.end(), seq));
    LeaveSlot(seq);
  }
  seq->tokens.resize(static_cast<size_t>(num_kept));
  seq->page_keys.resize(
      std::min(seq->page_keys.size(), static_cast<size_t>(num_kept / blocks_.page_tokens())));
  // A row that samples brings something new, also where its last position was computed before.
  seq->num_reported = std::min(seq->num_reported, tokens.empty() ? num_kept - 1 : num_kept);
  seq->tokens.insert(seq->tokens.end(), tokens.begin(), tokens.end());
  seq->banned_ids.assign(banned.begin(), banned.end());
  seq->banned_at = seq->num_tokens();
  PushWaiting(seq);
}

std::span<const ScheduledRow> Scheduler::Commit(const StepResult& result, int64_t now_us) {
  if (trace_ != nullptr) trace_->Committed(result, now_us);
  blocks_.SetTime(now_us);
  CHECK(num_in_flight_ > 0) << "commit of step " << result.step_id << ", and none is in flight";
  PlannedStep& step = InFlight(0);
  CHECK(result.step_id == step.step_id)
      << "commit of step " << result.step_id << ", the oldest in flight is " << step.step_id;
  CHECK(result.rows.size() == step.rows.size())
      << result.rows.size() << " results for " << step.rows.size() << " rows";
  for (size_t i = 0; i < std::min(kFar, step.rows.size()); ++i) PrefetchSequence(step.rows[i].seq);
  for (size_t i = 0; i < step.rows.size(); ++i) {
    if (i + kFar < step.rows.size()) PrefetchSequence(step.rows[i + kFar].seq);
    if (i + kNear < step.rows.size()) PrefetchNextToken(step.rows[i + kNear].seq);
    if (step.rows[i].seq != nullptr) step.rows[i].end = Advance(&step.rows[i], result.rows[i], result);
  }
  // A device that stood still until the step could be planned did so for the step's sake.
  const int64_t step_us = now_us - (step.awaited ? committed_us_ : std::max(step.planned_us, committed_us_));
  itl_.Observe({.prompt_tokens = step.num_prompt_tokens,
                .prompt_context = step.prompt_context,
                .decode_tokens = step.num_decode_tokens,
                .us = step_us});
  if (drafts_ != nullptr) LearnFromStep(result, step_us);
  committed_us_ = now_us;
  counters_.prompt_tokens += step.num_prompt_tokens;
  counters_.decode_tokens += step.num_decode_tokens;
  blocks_.Release(step.step_id);
  first_step_ = (first_step_ + 1) % steps_.size();
  --num_in_flight_;
  return step.rows;
}

std::span<Sequence* const> Scheduler::Abandon() {
  if (trace_ != nullptr) trace_->Abandoned();
  abandoned_.clear();
  for (int32_t age = 0; age < num_in_flight_; ++age) {
    for (const ScheduledRow& row : InFlight(age).rows) {
      if (row.seq == nullptr || std::find(abandoned_.begin(), abandoned_.end(), row.seq) != abandoned_.end())
        continue;
      abandoned_.push_back(row.seq);
    }
  }
  num_in_flight_ = 0;
  blocks_.Release(step_id_);
  for (Sequence* seq : waiting_) {
    if (seq->swapped.empty()) continue;
    blocks_.DropSwapped(&seq->swapped, step_id_);
    seq->num_computed = 0;
  }
  while (!running_.empty()) {
    Sequence* seq = running_.back();
    running_.pop_back();
    LeaveSlot(seq);
    PushWaiting(seq);
  }
  blocks_.ForgetCached();
  return abandoned_;
}

SequenceEnd Scheduler::Advance(ScheduledRow* scheduled, const ResultRow& row, const StepResult& result) {
  Sequence* seq = scheduled->seq;
  CHECK(row.slot == scheduled->slot && row.num_computed <= scheduled->num_computed &&
        row.num_computed >= scheduled->num_computed - scheduled->num_drafts)
      << "sequence " << seq->id << " in slot " << scheduled->slot << ": " << row.num_computed
      << " tokens in slot " << row.slot;
  --seq->num_in_flight;
  seq->num_unsure -= scheduled->num_drafts;
  if (scheduled->num_drafts > 0) TakeBackDrafts(scheduled, row);
  SequenceEnd end = SequenceEnd::kNone;
  if (scheduled->samples) {
    seq->num_sampling -= 1 + scheduled->num_drafts;
    end = TakeTokens(scheduled, row, result);
  } else if (row.num_computed == seq->max_total) {
    end = SequenceEnd::kLength;  // max_tokens 0
  }
  if (seq->state == SequenceState::kRunning) {
    Publish(seq, std::min(row.num_computed, seq->num_tokens()));
    DropBehindWindow(seq);
  }
  return end;
}

// What was planned as if all drafts were right, this row and those behind it that are in flight.
void Scheduler::TakeBackDrafts(ScheduledRow* scheduled, const ResultRow& row) {
  Sequence* seq = scheduled->seq;
  const int32_t num_wrong = scheduled->num_computed - row.num_computed;
  const int32_t num_right = scheduled->num_drafts - num_wrong;
  CHECK(row.accept_len == num_right) << "sequence " << seq->id << ": " << row.accept_len << " tokens of " << num_right
                                     << " drafts";
  depths_.ObserveRow(&seq->draft_record, scheduled->num_drafts, num_right);
  ++counters_.draft_rows;
  counters_.draft_tokens += scheduled->num_drafts;
  counters_.accepted_tokens += num_right;
  for (int32_t i = 0; i < num_right; ++i) ++counters_.accepted_by_position[static_cast<size_t>(i)];
  if (num_wrong == 0) return;
  counters_.decode_tokens -= num_wrong;
  scheduled->num_computed -= num_wrong;
  scheduled->num_new -= num_wrong;
  seq->num_reported -= num_wrong;
  for (int32_t age = 1; age < num_in_flight_; ++age) {
    for (ScheduledRow& behind : InFlight(age).rows) {
      if (behind.seq == seq) behind.num_computed -= num_wrong;
    }
  }
  if (seq->state == SequenceState::kRunning) {
    seq->num_computed -= num_wrong;
    blocks_.Truncate(seq->slot, seq->num_computed, seq->last_step);
  } else if (!seq->swapped.empty()) {
    seq->num_computed -= num_wrong;
    blocks_.TruncateSwapped(&seq->swapped, seq->num_computed, seq->last_step);
  }
}

// Accepted drafts, then what was sampled behind them, until the sequence ends.
SequenceEnd Scheduler::TakeTokens(ScheduledRow* scheduled, const ResultRow& row, const StepResult& result) {
  Sequence* seq = scheduled->seq;
  const bool guesses = drafts_ != nullptr && !drafts_->on_device();
  ++counters_.sampling_rows;
  for (int32_t i = 0; i <= row.accept_len; ++i) {
    const int32_t token =
        i < row.accept_len ? result.accepted[static_cast<size_t>(row.accept_begin + i)].token_id : row.sampled_token;
    if (token < 0 || token >= limits_.vocab_size) return SequenceEnd::kBadToken;
    if (guesses && seq->draft_guess_at == seq->num_tokens()) depths_.ObserveGuess(&seq->draft_record, token == seq->draft_guess);
    seq->tokens.push_back(token);
    ++scheduled->num_sampled;
    ++counters_.sampled_tokens;
    if (seq->may_stop(token)) {
      const auto& stops = seq->spec.stop_ids;
      if (std::find(stops.begin(), stops.end(), token) != stops.end()) return SequenceEnd::kStop;
    }
    if (seq->num_tokens() == seq->max_total) return SequenceEnd::kLength;
  }
  return SequenceEnd::kNone;
}

// Steps with prompts in them say nothing about decoding, and those that waited in vain nothing about others without drafts.
void Scheduler::LearnFromStep(const StepResult& result, int64_t step_us) {
  const PlannedStep& step = InFlight(0);
  if (step.num_prompt_tokens > 0) return depths_.ObservePrompts(step_us);
  if (step.num_decode_tokens == 0 || result.one_off) return;
  if (step.awaited && step.num_drafted == 0) return;
  DraftedStep seen = {.num_rows = static_cast<int32_t>(step.rows.size()),
                      .num_tokens = step.num_decode_tokens,
                      .step_us = step_us,
                      .draft_us = result.draft_us};
  for (const ResultRow& row : result.rows) seen.num_accepted += row.accept_len;
  for (const ScheduledRow& row : step.rows) seen.context += row.num_computed;
  if (drafts_->on_device()) seen.num_drafted = step.num_drafted, seen.num_passes = step.max_drafts;
  depths_.ObserveStep(seen);
}

// The tokens of the first num_computed positions are known, and computed in steps that are committed.
void Scheduler::Publish(Sequence* seq, int32_t num_computed) {
  if (!options_.enable_prefix_caching) return;
  const size_t num_pages = static_cast<size_t>(num_computed / blocks_.page_tokens());
  if (num_pages <= seq->num_published) return;
  ExtendKeys(seq, num_computed);
  const std::span<const BlockKey> keys = std::span(seq->page_keys).first(num_pages);
  // What it had published before it was preempted counts as used by it already.
  const size_t counted = std::clamp(seq->num_counted, seq->num_published, num_pages);
  blocks_.Publish(seq->slot, keys.first(counted), seq->num_published, TermsOf(*seq, /*again=*/true));
  blocks_.Publish(seq->slot, keys, counted, TermsOf(*seq, /*again=*/false));
  seq->num_published = num_pages;
  seq->num_counted = std::max(seq->num_counted, num_pages);
}

// Those who come after the first kMaxKvTenants share the last count.
int32_t Scheduler::TenantId(const std::string& tenant) {
  const auto found = tenant_ids_.find(tenant);
  if (found != tenant_ids_.end()) return found->second;
  if (tenant_ids_.size() + 1 >= kMaxKvTenants) return kMaxKvTenants - 1;
  const auto id = static_cast<int32_t>(tenant_ids_.size());
  tenant_ids_.emplace(tenant, id);
  return id;
}

KeepTerms Scheduler::TermsOf(const Sequence& seq, bool again) const {
  KeepTerms terms = seq.spec.keep;
  terms.again = again;
  return terms;
}

int32_t Scheduler::PinPrefix(std::span<const int32_t> prompt_ids, const std::string& cache_salt,
                             bool pinned) {
  if (trace_ != nullptr) trace_->Pinned(prompt_ids, cache_salt, pinned);
  if (!options_.enable_prefix_caching) return 0;
  return blocks_.SetPinned(PageKeys(prompt_ids, cache_salt), pinned);
}

void Scheduler::FlushCache() {
  if (trace_ != nullptr) trace_->Flushed();
  blocks_.ForgetCached();
}

void Scheduler::ExtendKeys(Sequence* seq, int32_t num_tokens) const {
  const auto page_tokens = static_cast<size_t>(blocks_.page_tokens());
  for (size_t end = (seq->page_keys.size() + 1) * page_tokens; end <= static_cast<size_t>(num_tokens);
       end += page_tokens) {
    const BlockKey parent =
        seq->page_keys.empty() ? RootKey(limits_.kv_identity, seq->spec.cache_salt) : seq->page_keys.back();
    seq->page_keys.push_back(
        ChildKey(parent, std::span(seq->tokens).subspan(end - page_tokens, page_tokens)));
  }
}

// What no row to come reads; a row in flight may read it still.
void Scheduler::DropBehindWindow(Sequence* seq) {
  blocks_.DropBehindWindow(seq->slot, seq->num_computed - seq->num_unsure, seq->last_step);
}

void Scheduler::Preempt(Sequence* seq, StepPlan* plan) {
  // The MTP layer's hidden state does not move with the blocks.
  const bool swap = options_.preemption == PreemptionMode::kSwap && !seq->spec.mtp_logits &&
                    seq->num_computed > 0 && blocks_.CanSwapOut(seq->slot);
  if (swap) {
    blocks_.SwapOut(seq->slot, plan->step_id, &seq->swapped, &plan->swap_outs);
    seq->last_step = plan->step_id;
    Vacate(seq);
    ++counters_.swaps;
  } else {
    LeaveSlot(seq);
    ++counters_.recomputes;
  }
  PushWaiting(seq);
}

// Gives up its slot, and all that it computed.
void Scheduler::LeaveSlot(Sequence* seq) {
  blocks_.Free(seq->slot, seq->last_step);
  Vacate(seq);
  seq->num_computed = 0;
  seq->is_sought = false;  // what it computed may be there by now
}

void Scheduler::Vacate(Sequence* seq) {
  free_slots_.push_back(seq->slot);
  if (seq->wants_logits()) --num_running_logits_;
  seq->slot = -1;
  seq->num_published = 0;
  seq->device_has_last_token = false;
}

void Scheduler::PushWaiting(Sequence* seq) {
  seq->state = SequenceState::kWaiting;
  waiting_.insert(
      std::upper_bound(waiting_.begin(), waiting_.end(), seq,
                       [this](const Sequence* a, const Sequence* b) { return policy_->Before(*b, *a); }),
      seq);
}

}  // namespace cachalot
