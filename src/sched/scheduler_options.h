// What the scheduler may be told: the executor's hard limits, and the knobs that a user or a controller
// turns.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kv/plan.h"
#include "kv/policy/lru_k.h"
#include "spec/plan.h"

namespace cachalot {

// Given by the executor; no plan exceeds them.
struct SchedulerLimits {
  int32_t max_seqs = 0;
  int32_t max_step_tokens = 0;
  int32_t max_context = 0;
  int32_t vocab_size = 0;
  int32_t max_logit_rows = 0;
  int32_t depth = 0;  // steps in flight while the next is planned: 0 or 1
  std::vector<KvGroupInfo> kv_groups;
  std::string kv_identity = "";  // what else KV contents depend on: weights, KV types
  DraftKind device_drafts = DraftKind::kNone;  // what the executor was set up to draft with
  int32_t draft_context = 0;     // tokens in front of a sequence's first row that it wants to know for that
  double draft_cost = 0;         // what it reads to draft a token, of what it reads in a step
  bool accepts_by_lot = false;   // drafts are accepted right or wrong: what comes says nothing of them
};

enum class PreemptionMode {
  kRecompute,  // forget the KV cache, and compute it again later
  kSwap,       // move it to the host, as long as there is room
};

struct SchedulerOptions {
  int32_t max_batch_tokens = 512;  // token budget of a step (clipped to the executor's)
  int32_t prefill_chunk = 512;     // a sequence advances by at most this many tokens in a step
  int32_t reserve_blocks_per_seq =
      1;  // blocks that admission leaves free in each group for every running sequence
  int32_t itl_target_us =
      0;  // time between two tokens of a running stream that prompts must not spoil; 0: none
  // Without a target: percent of what streams wait for a token at the median that a step with prompts may take, while few
  // prompts want in. 0: any
  int32_t itl_percent = 0;
  int32_t min_prompt_tokens = 16;  // that a step may take in any case, beside running streams
  bool enable_prefix_caching = true;
  std::string kv_policy = "lru-k";  // which cached blocks give way: kv/policy/eviction_policies.h
  LruKOptions lru_k = {};
  int32_t kv_tenant_floor =
      0;  // percent of the KV cache in which a tenant's prefixes stay, whatever others bring
  // A newcomer waits while a running sequence computes so many tokens, or more, that it could take over then.
  int32_t await_prefix_tokens = 256;
  PreemptionMode preemption = PreemptionMode::kRecompute;
  DraftKind drafts = DraftKind::kNone;
  int32_t max_drafts = 4;      // of one sequence in a step
  bool adaptive_drafts = true;  // only where they pay (spec/depth_controller.h); false: always max_drafts
};

struct SchedulerKnob {
  std::string_view name;
  std::string_view unit;
  int32_t min = 0;
  int32_t max = 0;
  int32_t SchedulerOptions::*value;
};

inline constexpr SchedulerKnob kSchedulerKnobs[] = {
    {"max_batch_tokens", "tokens", 1, 1 << 20, &SchedulerOptions::max_batch_tokens},
    {"prefill_chunk", "tokens", 1, 1 << 20, &SchedulerOptions::prefill_chunk},
    {"itl_target_us", "us", 0, 1 << 30, &SchedulerOptions::itl_target_us},
    {"itl_percent", "%", 0, 100'000, &SchedulerOptions::itl_percent},
    {"min_prompt_tokens", "tokens", 1, 1 << 20, &SchedulerOptions::min_prompt_tokens},
    {"await_prefix_tokens", "tokens", 1, 1 << 30, &SchedulerOptions::await_prefix_tokens},
    {"kv_tenant_floor", "%", 0, 50, &SchedulerOptions::kv_tenant_floor},
    {"max_drafts", "tokens", 1, kMaxDrafts, &SchedulerOptions::max_drafts},
    {"reserve_blocks_per_seq", "blocks", 0, 1 << 10, &SchedulerOptions::reserve_blocks_per_seq},
};

// Every knob within its range, and limits with which at least one token can be computed.
Status CheckSchedulerOptions(const SchedulerLimits& limits, const SchedulerOptions& options);

}  // namespace cachalot
