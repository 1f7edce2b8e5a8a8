// Sequence: what the scheduler knows of one request: its tokens, how many of them are computed, and where it
// stands. Invariant: tokens = prompt, then everything sampled so far; preemption forgets the KV cache, never
// a token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kv/block_key.h"
#include "kv/block_table.h"
#include "kv/prefix_index.h"
#include "sample/plan.h"
#include "spec/depth_controller.h"

namespace cachalot {

struct SequenceSpec {
  std::vector<int32_t> prompt_ids;
  SamplingConfig sampling;
  int32_t max_tokens = 0;         // 0: only compute the prompt
  std::vector<int32_t> stop_ids;  // a sampled token among these ends the sequence
  int32_t num_top_logprobs = -1;  // -1: none
  bool prompt_logprobs = false;
  int32_t num_prompt_top_logprobs = 0;  // with prompt_logprobs
  bool all_logits = false;
  bool mtp_logits = false;
  int32_t priority = 0;      // lower runs first
  std::string tenant;        // whose work it is
  double tenant_weight = 1;  // > 0; a tenant with twice the weight is due twice the work
  int64_t deadline_us = std::numeric_limits<int64_t>::max();
  std::string cache_salt;  // only sequences with the same one share cached prefixes
  KeepTerms keep = {};     // how long they are wanted

  bool wants_logits() const { return all_logits || mtp_logits; }
};

enum class SequenceState { kNew, kWaiting, kRunning };

enum class SequenceEnd {
  kNone,
  kStop,      // sampled one of stop_ids
  kLength,    // max_tokens, or no room for another token
  kBadToken,  // the executor sampled something outside the vocabulary
};

// Owned by whoever submits it; between Scheduler::Add and Remove only the scheduler changes it. What every step looks at
// lies in the last cache lines, so that a step need not bring the others into the caches.
struct Sequence {
  Sequence(uint64_t id_in, SequenceSpec spec_in) : id(id_in), spec(std::move(spec_in)) {}

  const uint64_t id;  // ascending in order of arrival
  SequenceSpec spec;  // prompt_ids moved to `tokens`
  int64_t added_us = 0;
  int64_t admitted_us = 0;  // for the first time
  double order = 0;         // the policy's own
  // The sequence whose prompt this one shares: it waits until that is computed. Null: none, or no more.
  Sequence* fork_of = nullptr;
  int32_t num_waiting_forks = 0;
  std::vector<BlockKey> page_keys;     // of the full pages of `tokens`, as far as they were needed
  size_t num_counted = 0;              // pages that were published at least once: a use each
  bool is_held = false;                // while it waits: others go first until a lower tier has brought what it can
  bool is_sought = false;              // lower tiers were asked
  SwappedTables swapped;               // while it waits: what it had computed, on the host
  std::vector<int32_t> banned_ids;     // not to be drawn at position banned_at
  int32_t banned_at = -1;
  DraftRecord draft_record;
  int32_t draft_guess = -1;            // what the host would have drafted as token number draft_guess_at
  int32_t draft_guess_at = -1;

  alignas(64) std::vector<int32_t> tokens;
  int32_t num_prompt = 0;
  int32_t max_total = 0;      // it ends when it holds this many tokens
  int32_t slot = -1;          // while running
  // Tokens in the KV cache when the steps in flight are done and all drafts in them were right; num_unsure fewer when all
  // are wrong.
  int32_t num_computed = 0;
  int32_t num_unsure = 0;
  int32_t num_in_flight = 0;  // rows of it in steps in flight
  // Tokens that those rows sample, if all their drafts are right: they stand behind `tokens`, and only the device knows
  // them before Commit.
  int32_t num_sampling = 0;
  // Positions whose outputs (logits, prompt log-probabilities) the owner has or gets from steps in flight:
  // after a preemption they are computed again but not reported again.
  int32_t num_reported = 0;
  int32_t q_len = 0;                   // its share of the step being planned, drafts included
  int32_t num_drafts = 0;              // of them
  SequenceState state = SequenceState::kNew;
  bool device_has_last_token = false;  // the runtime sampled the last token in this slot
  bool only_tokens = false;            // it wants nothing beside sampled tokens
  uint64_t stop_bits = 0;              // bit id % 64 of each stop id
  uint64_t last_step = 0;              // newest step with a row of this sequence
  size_t num_published = 0;            // pages that are known to the prefix cache, or came from it
  int32_t num_cached = -1;             // tokens of the prompt that came from it; -1: never admitted

  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_generated() const { return num_tokens() - num_prompt; }
  int32_t num_total() const { return num_tokens() + num_sampling; }
  // Positions that are to be computed, as far as is known. The last token that may be generated is not among
  // them.
  int32_t num_computable() const {
    return std::min(num_total(), max_total > num_prompt ? max_total - 1 : max_total);
  }
  bool wants_logits() const { return !only_tokens && spec.wants_logits(); }
  // Spares the look at a list that is elsewhere.
  bool may_stop(int32_t token) const { return (stop_bits >> (static_cast<uint32_t>(token) % 64) & 1) != 0; }
};

// While the device computed, others used the caches: fetching a sequence is most of what looking at it costs.
inline void PrefetchSequence(const Sequence* seq) {
  if (seq == nullptr) return;
  __builtin_prefetch(&seq->tokens, 1);
  __builtin_prefetch(&seq->stop_bits, 1);
}
// And when that is there: where its next token goes.
inline void PrefetchNextToken(const Sequence* seq) {
  if (seq != nullptr) __builtin_prefetch(seq->tokens.data() + seq->tokens.size(), 1);
}

}  // namespace cachalot
