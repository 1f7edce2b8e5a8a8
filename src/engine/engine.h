// Engine: requests in, token streams out; owns the loop (see engine/CONTRACT.md).
// Not thread-safe (but for Wake): one thread submits, steps and cancels. Callbacks are made from Step() on that thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/call_guide.h"
#include "engine/reasoning_guide.h"
#include "kv/tier_stats.h"
#include "runtime/executor.h"
#include "sample/plan.h"
#include "sched/scheduler_options.h"
#include "spec/plan.h"

namespace cachalot {

class Tokenizer;
struct SchedulerTrace;

enum class FinishReason {
  kStop,       // an end-of-generation token or a stop string
  kLength,     // max_tokens, or the context is full
  kCancelled,
  kError,      // see RequestOutput::error (a missed deadline: kDeadline)
};
const char* FinishReasonName(FinishReason reason);  // "stop", "length", …

struct Request {
  std::vector<int32_t> prompt_ids;   // at least one
  SamplingConfig sampling;
  int32_t max_tokens = 0;            // tokens to generate at most; 0: only compute the prompt (logits, log-probabilities)
  std::vector<int32_t> stop_ids;     // end of generation; not part of the text
  std::vector<std::string> stop_strings;  // end of generation; the text is cut before the match
  bool ignore_eos = false;           // stop_ids do not stop
  int32_t min_tokens = 0;            // before so many are generated no stop id is drawn and no stop string looked for
  std::vector<std::vector<int32_t>> bad_words;  // token sequences that the answer does not contain
  bool include_stop = false;         // the text ends behind the stop string or token, not before it
  bool skip_special = true;          // special tokens give no text
  // False: outputs carry no text and count no reasoning; whoever asks makes it of the tokens, elsewhere. Only where nothing
  // hangs on the text: no stop strings, no limit to the reasoning, no call.
  bool text = true;
  int32_t num_top_logprobs = -1;     // -1: no log-probabilities; n: the chosen token's and the n best
  bool prompt_logprobs = false;
  int32_t num_prompt_top_logprobs = 0;  // with prompt_logprobs: the n best at each position too
  bool all_logits = false;           // logits of every prompt position, and of each generated token
  bool mtp_logits = false;
  int32_t n = 1;                     // answers to the one prompt, which is computed once; the i-th has seed + i
  int32_t priority = 0;              // lower runs first
  std::string tenant;                // whose request it is, for policies that are fair among tenants
  double tenant_weight = 1;          // > 0: the share of the tenant
  int64_t deadline_us = 0;           // after Submit; what has not ended by then ends with kError. 0: none
  ReasoningLimits reasoning;         // where reasoning ends, and what follows it
  CallRule call;                     // the answer is a tool call, to its end
  std::vector<int32_t> shown_ids;    // special tokens whose text is part of the text all the same
  std::string cache_salt;            // cached prefixes are shared only among requests with the same one
  // What it leaves in the prefix cache goes before (< 0) or after (> 0) what others left, or as the policy says (0);
  int32_t kv_priority = 0;
  int64_t kv_ttl_us = 0;             // and first of all so long after its last use. 0: no limit
  int32_t kv_class = 0;              // 0..3: kinds of requests that return at different intervals (EngineOptions::lru_k)
};

// What one step brought for a request. Spans and views are valid during the callback only.
struct RequestOutput {
  uint64_t request_id = 0;
  int32_t choice = 0;                          // of Request::n; each ends by itself
  std::span<const int32_t> token_ids;          // newly generated
  std::string_view text;                       // newly completed text (never half a UTF-8 character); "" without tokenizer
  std::span<const float> logprobs;             // 0 for forced ones; one for each token in token_ids when asked for
  std::span<const std::span<const TopLogprob>> top_logprobs;
  std::span<const float> prompt_logprobs;      // in pieces as chunks are computed: log p(prompt[i+1])
  std::span<const TopLogprob> prompt_top_logprobs;  // num_prompt_top_logprobs for each of prompt_logprobs, best first
  std::span<const float> logits;               // positions x vocab, in pieces
  std::span<const float> mtp_logits;
  std::span<const float> hidden;
  int32_t num_prompt_computed = 0;             // prompt tokens computed so far, those from the prefix cache included
  int32_t num_cached_tokens = 0;               // prompt tokens that came from the prefix cache
  int32_t num_reasoning_tokens = 0;            // generated so far, between <think> and </think>
  int64_t queue_us = 0;                        // from Submit until it entered a step for the first time
  bool finished = false;
  FinishReason finish_reason = FinishReason::kStop;
  Status error;                                // with kError
};

using OutputCallback = std::function<void(const RequestOutput&)>;

struct EngineOptions {
  int32_t max_batch_tokens = 512;    // token budget of a step (clipped to the executor's)
  int32_t prefill_chunk = 512;       // a prompt advances by at most this many tokens in a step
  bool enable_prefix_caching = true;  // what was computed for one request serves others that begin alike
  std::string kv_policy = "lru-k";   // which cached blocks give way: lru, lfu, lru-k, arc, … (kv/policy/)
  LruKOptions lru_k = {};
  int32_t kv_tenant_floor = 0;       // percent of the KV cache in which a tenant's prefixes stay, whatever others bring
  int64_t kv_host_bytes = 0;         // of the host's memory, for prefixes that give way on a device (engine/kv_tier.h); 0: none
  std::string kv_disk_dir = "";      // where prefixes outlive memory and the process (kv/kv_disk.h); "": nowhere
  int64_t kv_disk_bytes = 0;         // that they may take there
  std::string policy = "fcfs";       // who goes first: fcfs, priority, fair (sched/policy/)
  double itl_target_ms = 0;          // prompts take so little of a step that running streams get a token in this time; 0: off
  double itl_ratio = 0;              // without a target: a step with prompts takes at most so many times what streams wait at the median, while few prompts want in; 0: off
  PreemptionMode preemption = PreemptionMode::kRecompute;
  DraftKind drafts = DraftKind::kNone;  // kMtp and kModel: the executor must be set up for them
  int32_t max_drafts = 4;            // tokens that are drafted for a sequence in a step, at most
  bool adaptive_drafts = true;       // so many as pay, measured all the time; false: always max_drafts
  int32_t max_waiting = 0;           // while so many sequences wait, Submit refuses (kExhausted). 0: any number
  const Clock* clock = nullptr;      // null: the machine's. Must outlive the engine
  SchedulerTrace* trace = nullptr;   // gets all that decides the schedule, to replay it (sched/scheduler_trace.h); grows
};

struct EngineStats {
  uint64_t steps = 0;                // that came to their end
  int64_t prompt_tokens = 0;         // computed
  int64_t generated_tokens = 0;
  int32_t running = 0;
  int32_t waiting = 0;
  int64_t preemptions = 0;
  int64_t recompute_preemptions = 0; // of them, those that forgot the KV cache,
  int64_t swap_preemptions = 0;      // and those that moved it to the host
  int64_t retaken_tokens = 0;        // drawn anew, because they completed a bad word
  int64_t recoveries = 0;            // of the executor, after an error
  int64_t admitted = 0;              // sequences that entered a step for the first time
  int64_t queue_us = 0;              // that they waited for it, together
  int32_t step_prompt_tokens = 0;    // of the last step: of prompts, or of what is computed again after a preemption
  int32_t step_decode_tokens = 0;
  int64_t step_launch_us = 0;        // of the last call of Step, what the launch took
  int64_t step_device_us = 0;        // for how long it waited for the device, or computed in its place
  int32_t prompt_budget = 0;         // prompt tokens that a step may take beside running streams (itl_target_ms)
  int64_t cache_query_tokens = 0;    // prompt tokens of the requests admitted so far
  int64_t cache_hit_tokens = 0;      // of them, those that came from the prefix cache
  int64_t cache_evictions = 0;       // blocks that were cached and gave way
  KvTierStats kv_host;               // of the tiers below (EngineOptions::kv_host_bytes,
  KvTierStats kv_disk;               // kv_disk_dir)
  int64_t draft_rows = 0;            // rows of steps with drafts in them,
  int64_t draft_tokens = 0;          // the drafts,
  int64_t accepted_tokens = 0;       // and those of them that were right,
  std::vector<int64_t> accepted_by_position;  // by their place; empty without drafts
  int64_t sampling_rows = 0;         // rows that brought tokens, with drafts or without,
  int64_t sampled_tokens = 0;        // and those tokens: their ratio is the tokens per step
  std::vector<int32_t> kv_blocks_pinned;  // by group
  std::vector<int32_t> kv_blocks_used;    // by group: held by requests
  std::vector<int32_t> kv_blocks_cached;  // by group: held by none, kept for those to come; as good as free
  std::vector<int64_t> kv_unused_tokens;  // by group: places in held blocks where no token is
  // By MoE layer: the share of experts that got a token, averaged over the steps (the \"activation rate\").
  std::vector<double> moe_activation_ratio;
};

// What the scheduler must keep to on this executor.
SchedulerLimits LimitsOf(const ExecutorInfo& info);

class Engine {
 public:
  // tokenizer may be null: then outputs carry no text and stop strings are refused. Both must outlive the engine.
  static Result<std::unique_ptr<Engine>> Create(StepExecutor* executor, const Tokenizer* tokenizer, EngineOptions options);
  virtual ~Engine() = default;

  // Checks everything that can be checked now (kInvalidArgument names value and limit) and queues the request.
  virtual Result<uint64_t> Submit(Request request, OutputCallback on_output) = 0;
  // Ends a request at the next step boundary; unknown or finished ids are ignored.
  virtual void Cancel(uint64_t request_id) = 0;
  virtual bool HasWork() const = 0;
  // From any thread: a Step that only waits for the tiers below the cache returns soon.
  virtual void Wake() {}
  // Between steps. What is cached of the beginning of a prompt is pinned, or is no more: it gives way after all else
  // that is cached. At most half of the cache. Returns for how many tokens that holds now.
  virtual int32_t PinPrefix(std::span<const int32_t> prompt_ids, const std::string& cache_salt, bool pinned) {
    return 0;
  }
  // Nothing that is cached is found any more.
  virtual void FlushCache() {}
  // Between steps. A file with `note`, whatever it says, and the KV blocks of `tokens` as far as they are cached (with no
  // salt); it replaces the file that is there.
  virtual Status SaveSession(const std::string& path, const std::string& note, std::span<const int32_t> tokens) {
    return Unsupported("this engine saves no sessions");
  }
  // The note; and what the file holds of this model is cached. Damaged blocks are left out, a damaged note is kCorrupt.
  struct LoadedSession {
    std::string note;
    int32_t num_blocks = 0;
    bool same_model = false;  // otherwise the note is all that is of use
  };
  virtual Result<LoadedSession> LoadSession(const std::string& path) { return Unsupported("this engine loads no sessions"); }
  // Plans and launches a step, then collects, commits and publishes one: the same at depth 0, the one before at depth 1
  // (so that a single call may bring nothing). An error of the executor ends the requests of all steps in flight with
  // kError, the executor recovers, and the engine goes on; a Status here means that the engine itself cannot.
  virtual Status Step() = 0;
  // Steps until no work is left.
  Status RunUntilIdle();
  virtual const EngineStats& stats() const = 0;
  // The result of the step published last as the executor gave it (expert counts and such).
  virtual const StepResult& last_result() const = 0;
};

}  // namespace cachalot
