// StepPlan and StepResult: the two plain structs through which the policy tower and the compute tower meet.
// No pointers: the same bytes serve record, replay and the broadcast to other ranks. The vectors are reused
// from step to step, so that a step in steady state allocates nothing.
//
// A step is a ragged batch: each row is one sequence and the tokens that are computed for it now. There is no
// prefill step and no decode step.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/plan.h"
#include "sample/plan.h"

namespace cachalot {

// What a row wants back, as bits of PlanRow::outputs.
inline constexpr uint32_t kOutputSample = 1u << 0;          // draw a token from the last position
inline constexpr uint32_t kOutputTopLogprobs = 1u << 1;     // with the sampled token: num_top_logprobs best
inline constexpr uint32_t kOutputPromptLogprobs = 1u << 2;  // log p(next token) at every position of the row
inline constexpr uint32_t kOutputAllLogits = 1u << 3;       // logits at every position of the row
inline constexpr uint32_t kOutputHidden = 1u << 4;  // hidden state after the final norm, every position
// Run the MTP layer too, and give its logits. MTP slot i pairs the hidden state at position i with token i +
// 1, so a row over positions [p, p + q_len) completes the slots [p - 1, p + q_len - 1) (from 0 when p is 0).
// A sequence that wants this wants it from its first row on: slots are never skipped.
inline constexpr uint32_t kOutputMtp = 1u << 5;

struct PlanRow {
  int32_t slot = 0;          // the sequence's place in the runtime's state, [0, max_seqs)
  int32_t q_len = 0;         // tokens computed for it in this step (an upper bound once drafts are verified)
  // Tokens of it already in the KV cache. A row whose tokens the runtime knows (token_begin -1) stands behind what that has
  // computed: where drafts are in flight they may be fewer, this is if all of them are right.
  int32_t num_computed = 0;
  // Of q_len, the last ones are drafts, each a guess at the token that the position in front of it samples. A row with
  // drafts has one other token, the last sampled one, and samples: at each position in turn, until a draft is none of
  // what was sampled (ResultRow::accept_begin).
  int32_t num_drafts = 0;
  // First of q_len ids in StepPlan::token_ids. -1: the runtime's last sampled token, and drafts that it makes.
  int32_t token_begin = -1;
  int32_t next_token = -1;  // the id that follows the row, when known (prompt log-probabilities)
  uint32_t outputs = 0;
  int32_t num_top_logprobs = 0;
  int32_t num_prompt_top_logprobs = 0;  // with kOutputPromptLogprobs: the so many best beside each
  bool operator==(const PlanRow&) const = default;
};

// Stop ids beyond these are found by the host only, one step later at depth 1.
inline constexpr int32_t kMaxDeviceStopIds = 16;

// A sequence enters a slot: everything the runtime must know that is not in its KV blocks.
struct SlotSetup {
  int32_t slot = 0;
  SamplingConfig sampling;
  // Range in StepPlan::history_ids: the tokens that count for the penalties so far (empty without penalties);
  // the first num_prompt of them are the prompt.
  int32_t history_begin = 0;
  int32_t history_len = 0;
  int32_t history_num_prompt = 0;
  // Range in StepPlan::context_ids: the tokens in front of its first row, or the last of them, for a drafter that needs
  // them (SchedulerLimits::draft_context).
  int32_t context_begin = 0;
  int32_t context_len = 0;
  // Range in StepPlan::stop_ids, at most kMaxDeviceStopIds: a sampled token among these ends the sequence.
  // The runtime may then skip the slot's rows until its next setup; the host looks at all stop ids itself.
  int32_t stop_begin = 0;
  int32_t stop_len = 0;
  bool operator==(const SlotSetup&) const = default;
};

struct StepPlan {
  uint64_t step_id = 0;
  // In this order; a plan may consist of moves alone.
  std::vector<BlockMove> swap_outs;  // from the device to the host
  std::vector<BlockMove> swap_ins;   // from the host to the device
  std::vector<SlotSetup> setups;
  std::vector<BlockCopy> block_copies;
  std::vector<BlockWrite> block_writes;
  std::vector<PlanRow> rows;  // then the forward
  std::vector<int32_t> token_ids;
  std::vector<int32_t> history_ids;
  std::vector<int32_t> stop_ids;
  std::vector<int32_t> context_ids;

  bool operator==(const StepPlan&) const = default;
  bool empty() const { return rows.empty() && swap_outs.empty(); }
  int64_t num_tokens() const {
    int64_t count = 0;
    for (const auto& row : rows) count += row.q_len;
    return count;
  }
  void Clear() {
    swap_outs.clear();
    setups.clear();
    block_copies.clear();
    swap_ins.clear();
    block_writes.clear();
    rows.clear();
    token_ids.clear();
    history_ids.clear();
    stop_ids.clear();
    context_ids.clear();
  }
};

struct TopLogprob {
  int32_t token_id = -1;
  float logprob = 0.0f;
};

// A draft that was what its position sampled.
struct AcceptedToken {
  int32_t token_id = -1;
  float logprob = 0.0f;  // this and the range as in ResultRow
  int32_t top_begin = 0;
  int32_t top_len = 0;
};

struct ResultRow {
  int32_t slot = 0;
  int32_t num_computed = 0;  // tokens of the sequence in the KV cache now; drafts that were not accepted are not
  // Range in StepResult::accepted: the tokens sampled in front of sampled_token. As many as drafts were accepted.
  int32_t accept_begin = 0;
  int32_t accept_len = 0;
  // -1: none was asked for, or the row was skipped because its slot had stopped. The row of a stopped slot is
  // discarded, so nothing else of it need be right.
  int32_t sampled_token = -1;
  float sampled_logprob = 0.0f;  // valid with kOutputTopLogprobs
  int32_t top_begin = 0;         // range in StepResult::top_logprobs
  int32_t top_len = 0;
  int32_t prompt_logprob_begin =
      0;  // range in StepResult::prompt_logprobs: one for each position with a known next token
  int32_t prompt_logprob_len = 0;
  int32_t prompt_top_begin = 0;  // prompt_logprob_len x num_prompt_top_logprobs in StepResult::prompt_top_logprobs
  int64_t logits_begin = -1;  // q_len x vocab values in StepResult::logits; -1: none
  int64_t hidden_begin = -1;  // q_len x hidden_size values in StepResult::hidden
  int64_t mtp_logits_begin =
      -1;  // (q_len, or q_len - 1 from position 0) x vocab values in StepResult::mtp_logits
};

struct StepResult {
  uint64_t step_id = 0;
  std::vector<ResultRow> rows;  // in the order of the plan's rows
  std::vector<AcceptedToken> accepted;
  int64_t draft_us = 0;  // of the step's time, what making drafts took
  int64_t device_us = 0;  // and for how long the host waited for the device, or computed in its place
  bool one_off = false;  // that time holds work that is done once: it says nothing of other steps
  std::vector<TopLogprob> top_logprobs;
  std::vector<float> prompt_logprobs;
  std::vector<TopLogprob> prompt_top_logprobs;
  std::vector<float> logits;
  std::vector<float> hidden;
  std::vector<float> mtp_logits;
  // Tokens sent to each expert in this step, [MoE layers x num_experts]; empty for dense models.
  std::vector<int32_t> expert_counts;

  void Clear() {
    rows.clear();
    accepted.clear();
    draft_us = 0;
    device_us = 0;
    one_off = false;
    top_logprobs.clear();
    prompt_logprobs.clear();
    prompt_top_logprobs.clear();
    logits.clear();
    hidden.clear();
    mtp_logits.clear();
    expert_counts.clear();
  }
};

}  // namespace cachalot
