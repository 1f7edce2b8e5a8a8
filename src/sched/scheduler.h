// Scheduler: which tokens of which sequences each step computes. One token budget a step: first the sequences
// that decode, then chunks of the prompts that run, then newcomers from the waiting queue. Invariants: a plan
// never exceeds the executor's limits. Every running sequence can decode in every step (admission sees to
// it), so none starves. Memory is granted in the policy's order, and only sequences behind the one that needs
// it are preempted: the first always advances, so all end. A preempted sequence keeps its tokens and is
// computed anew. Single-threaded and deterministic: the same calls give the same plans. In steady state it
// allocates nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "kv/block_manager.h"
#include "sched/itl_budget.h"
#include "sched/plan.h"
#include "sched/policy/scheduling_policy.h"
#include "sched/scheduler_options.h"
#include "sched/scheduler_trace.h"
#include "sched/sequence.h"
#include "spec/draft_source.h"

namespace cachalot {

// One row of a step, beside StepPlan::rows[i] and StepResult::rows[i].
struct ScheduledRow {
  Sequence* seq =
      nullptr;  // null: it was removed while the step was in flight, and what the row brings is discarded
  int32_t slot = 0;
  int32_t num_computed = 0;  // after the row; until Commit as if all its drafts were right
  int32_t num_drafts = 0;
  bool samples = false;
  int32_t num_sampled = 0;  // tokens that Commit appended; the last is ResultRow::sampled_token, unless it ended before
  // Of its positions, those that were never reported before (the last ones). After a preemption this is 0
  // until all that was lost is computed again; a row with logits or prompt log-probabilities is wholly new or
  // not at all.
  int32_t num_new = 0;
  SequenceEnd end = SequenceEnd::kNone;  // set by Commit; the owner then calls Remove
};

// Since the start.
struct SchedulerCounters {
  int64_t recomputes = 0;          // preemptions that forgot the KV cache,
  int64_t swaps = 0;               // and those that moved it to the host
  int64_t admitted = 0;            // sequences, for the first time
  int64_t queue_us = 0;            // that they waited for it, together
  int64_t cache_query_tokens = 0;  // of their prompts
  int64_t cache_hit_tokens = 0;    // of them, those that came from the prefix cache
  int64_t prompt_tokens = 0;       // in committed steps: of prompts, or of what is computed again
  int64_t decode_tokens = 0;       // computed for sequences that decode, and not undone
  int64_t draft_rows = 0;          // rows with drafts,
  int64_t draft_tokens = 0;        // the drafts in them,
  int64_t accepted_tokens = 0;     // and those that were right,
  std::array<int64_t, kMaxDrafts> accepted_by_position = {};  // by their place
  int64_t sampling_rows = 0;       // rows that brought tokens,
  int64_t sampled_tokens = 0;      // and how many
};

class Scheduler {
 public:
  static Result<std::unique_ptr<Scheduler>> Create(SchedulerLimits limits, SchedulerOptions options,
                                                   std::unique_ptr<SchedulingPolicy> policy);

  // Tokens that one sequence can hold, prompt and generated: the context, or less if the KV pools are
  // smaller.
  int32_t max_seq_tokens() const { return max_seq_tokens_; }
  // Why this sequence could never run.
  Status CanAdd(const SequenceSpec& spec) const;
  // Queues it; it must outlive its Remove. CanAdd must have agreed. With `fork_of`, a live sequence with the
  // same prompt, it waits until that prompt is computed and shares its blocks. It must want no logits and no
  // prompt log-probabilities.
  void Add(Sequence* seq, int64_t now_us = 0, Sequence* fork_of = nullptr);
  // Its tokens from num_kept on become `tokens`, which were not sampled; it must have room for them and want
  // no logits. It goes back to the queue, and its rows in flight become nobody's. None of `banned` is drawn at the position
  // behind them.
  void Continue(Sequence* seq, int32_t num_kept, std::span<const int32_t> tokens, std::span<const int32_t> banned = {});
  // Forgets it, in whatever state it is, and frees what it holds. Its rows in flight become nobody's.
  void Remove(Sequence* seq);

  // Drafts that would pay continue tokens that a step in flight draws: it should be committed before the next is planned.
  bool AwaitsTokens();
  // Fills the next step. An empty plan: nothing can be done before the steps in flight are committed, and
  // there is no step. At most `depth` steps may be in flight. What those will bring is not known: the plan
  // counts on nothing but that their rows are computed.
  void Plan(StepPlan* plan, int64_t now_us = 0);
  // The oldest step in flight was computed: advances its sequences. The rows are valid until the next Plan.
  std::span<const ScheduledRow> Commit(const StepResult& result, int64_t now_us = 0);
  // A step failed, and with it all that are in flight; no slot and no block holds anything now. Returns the
  // sequences with a row in one of the steps, which the owner must Remove; all others are computed anew.
  std::span<Sequence* const> Abandon();

  // The cached beginning of `prompt_ids` is pinned, or is no more: pins go after all else that is cached.
  // Half of a pool at most. Returns the tokens whose blocks are cached and now as wanted.
  int32_t PinPrefix(std::span<const int32_t> prompt_ids, const std::string& cache_salt, bool pinned);
  // Nothing that is cached is found any more.
  void FlushCache();

  // Tiers below the cache (scheduler_tier.cc). What commits make known is appended to `published` from now on.
  void ReportPublished(std::vector<PublishedBlock>* published) { blocks_.ReportPublished(published); }
  // Of the first that wait, one whose prefix nobody has looked for in lower tiers since it came or was preempted; null: none.
  Sequence* NextToSeek();
  // The keys of all pages that it could take over.
  std::span<const BlockKey> SeekKeys(Sequence* seq) const;
  // The tokens of them that are cached now, or could be: BlockManager::FindPrefixWith.
  int32_t FindCached(std::span<const BlockKey> page_keys) const;
  int32_t FindWith(std::span<const BlockKey> page_keys, const BlockManager::ElsewhereHas& elsewhere) const;
  // Until it is said otherwise, `seq`, which waits, stands aside.
  void Hold(Sequence* seq, bool held);
  // BlockManager::Restore.
  int32_t Restore(const TierBlock& wanted, const KeepTerms& terms);
  // As prefix keys are made, of tokens.
  std::vector<BlockKey> PageKeys(std::span<const int32_t> tokens, const std::string& cache_salt) const;

  int32_t num_in_flight() const { return num_in_flight_; }
  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int64_t num_preemptions() const { return counters_.recomputes + counters_.swaps; }
  const SchedulerCounters& counters() const { return counters_; }
  // Prompt tokens that a step may take beside running streams.
  int32_t prompt_budget() const { return itl_.PromptTokens(); }
  const BlockManager& blocks() const { return blocks_; }
  // From now on, all that this scheduler is told goes into `trace` (null: no more).
  void RecordTo(SchedulerTrace* trace) { trace_ = trace; }

 private:
  Scheduler(SchedulerLimits limits, SchedulerOptions options, std::unique_ptr<SchedulingPolicy> policy,
            const MakeEvictionPolicy& make_eviction);

  // The parts of Plan, in order (scheduler_plan.cc).
  void ReserveFor(StepPlan* plan) const;
  void Displace(StepPlan* plan);
  void ShareBudget();
  bool ManyPrompts(int32_t num_decoding) const;
  void ChooseDrafts();
  void FindCandidates(bool known);
  int32_t DraftRoom() const { return std::max(0, (budget_left_ - num_running()) / 2); }
  void GrantMemory(StepPlan* plan);
  void GrantDrafts(StepPlan* plan);
  void AddRunningRows(StepPlan* plan);
  void Admit(StepPlan* plan);

  int32_t Share(const Sequence& seq, int32_t num_computed) const;
  void Take(Sequence* seq);
  void AddOutputs(const Sequence& seq, PlanRow* row) const;
  void AddRow(Sequence* seq, StepPlan* plan);

  // What a sequence that enters need not compute (scheduler_admit.cc).
  struct Start {
    enum Kind { kPrefix, kForked, kSwapped } kind = kPrefix;
    int32_t num_computed = 0;
  };
  bool StandsAside(const Sequence& seq) const { return seq.is_held || WaitsForPrompt(seq); }
  bool WaitsForPrompt(const Sequence& seq) const;
  bool WaitsForPrefix(const Sequence& seq, const Start& start) const;
  Sequence* Head() const;
  void SumPromises();
  void PromiseMemory(const Sequence& seq);
  bool CanAdmit(const Sequence& seq, const Start& start, bool soon) const;
  bool CanEnter(Sequence* seq);
  Start FindStart(Sequence* seq) const;
  int32_t MostCached(const Sequence& seq) const;
  int32_t FindPrefix(Sequence* seq) const;
  int32_t CountShared(int32_t group, const Sequence& seq, const Start& start) const;
  void Enter(Sequence* seq, const Start& start, StepPlan* plan);
  void TakeStart(Sequence* seq, const Start& start, StepPlan* plan);
  void CountAdmission(Sequence* seq, const Start& start);
  void LeaveFork(Sequence* seq);

  void ExtendKeys(Sequence* seq, int32_t num_tokens) const;
  int32_t TenantId(const std::string& tenant);
  KeepTerms TermsOf(const Sequence& seq, bool again) const;
  void Publish(Sequence* seq, int32_t num_computed);
  SequenceEnd Advance(ScheduledRow* scheduled, const ResultRow& row, const StepResult& result);
  SequenceEnd TakeTokens(ScheduledRow* scheduled, const ResultRow& row, const StepResult& result);
  void TakeBackDrafts(ScheduledRow* scheduled, const ResultRow& row);
  void LearnFromStep(const StepResult& result, int64_t step_us);
  void DropBehindWindow(Sequence* seq);
  void Preempt(Sequence* seq, StepPlan* plan);
  void LeaveSlot(Sequence* seq);
  void Vacate(Sequence* seq);
  void PushWaiting(Sequence* seq);

  const SchedulerLimits limits_;
  const SchedulerOptions options_;
  const std::unique_ptr<SchedulingPolicy> policy_;
  BlockManager blocks_;
  int32_t step_budget_ = 0;  // tokens of one step
  int32_t max_running_ = 0;
  int32_t max_q_len_ = 0;
  int32_t max_seq_tokens_ = 0;

  std::vector<Sequence*> waiting_;  // last runs first
  std::vector<Sequence*> running_;  // first runs first
  int32_t num_running_logits_ = 0;  // of them, those that want logits of every position
  std::vector<int32_t> free_slots_;
  SchedulerCounters counters_;
  SchedulerTrace* trace_ = nullptr;
  std::unordered_map<std::string, int32_t> tenant_ids_;  // for the prefix cache

  struct PlannedStep {
    uint64_t step_id = 0;
    int64_t planned_us = 0;
    int32_t num_prompt_tokens = 0;
    int64_t prompt_context = 0;  // of these, the sum of the tokens in front of each
    int32_t num_decode_tokens = 0;
    int32_t num_drafted = 0;  // rows with drafts
    int32_t max_drafts = 0;   // the most in one row
    bool awaited = false;     // the tokens of the step before
    std::vector<ScheduledRow> rows;
  };
  PlannedStep& InFlight(int32_t age) {
    return steps_[(first_step_ + static_cast<size_t>(age)) % steps_.size()];
  }
  uint64_t step_id_ = 0;            // the newest that was planned
  std::vector<PlannedStep> steps_;  // a ring: those in flight, oldest first, then the one being planned
  size_t first_step_ = 0;
  int32_t num_in_flight_ = 0;
  std::vector<Sequence*> abandoned_;
  ItlBudget itl_;
  const std::unique_ptr<DraftSource> drafts_;  // null: none
  DepthController depths_;
  int64_t committed_us_ = 0;  // the last step
  bool awaits_tokens_ = false;  // the step that is planned next

  // While planning.
  PlannedStep* step_ = nullptr;
  int64_t now_us_ = 0;
  int32_t budget_left_ = 0;
  int32_t logit_rows_left_ = 0;
  std::vector<DraftCandidate> candidates_;  // [sequences that can be drafted for]
  std::vector<Sequence*> candidate_seqs_;
  std::vector<int32_t> draft_ids_;          // [max_seqs, max_drafts] by slot
  std::vector<int64_t>
      promised_;  // [groups] blocks that running sequences still need for the tokens they hold
};

}  // namespace cachalot
