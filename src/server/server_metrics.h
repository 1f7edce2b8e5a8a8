// The handles of every metric that the server moves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "obs/metrics.h"
#include "kv/tier_stats.h"
#include "runtime/executor.h"

namespace cachalot {

struct ServerMetrics {
  ServerMetrics(MetricRegistry* registry, const ExecutorInfo& info);

  MetricRegistry* registry;
  // Of the engine, moved by its loop.
  Gauge* running;
  Gauge* waiting;
  Gauge* kv_usage;
  std::vector<Gauge*> kv_blocks_used;    // by group
  std::vector<Gauge*> kv_blocks_cached;  // by group
  std::vector<Gauge*> kv_blocks_pinned;  // by group
  Counter* cache_evictions;
  Counter* steps;
  Counter* preemptions;
  Counter* prefix_queries;
  Counter* prefix_hits;
  // Of speculation. By the draft's place in its row: there once the engine drafts.
  Counter* draft_rows;
  Counter* draft_tokens;
  Counter* accepted_tokens;
  std::vector<Counter*> accepted_by_position;
  Gauge* tokens_per_step;
  void AddDraftPositions(size_t count);
  // Of the tiers below the KV cache, those that there are.
  void ShowTiers(const KvTierStats& host, const KvTierStats& disk);
  Counter* prompt_tokens;
  Counter* cached_tokens;
  Counter* generation_tokens;
  Histogram* step_seconds;
  Histogram* step_host_seconds;
  Histogram* step_launch_seconds;
  Histogram* step_wait_seconds;
  Histogram* step_tokens;
  Histogram* step_prompt_tokens;
  Histogram* step_decode_tokens;
  Histogram* queue_seconds;
  Histogram* inter_token_seconds;
  // Of requests, moved when they make progress and end.
  Histogram* first_token_seconds;
  Histogram* e2e_seconds;
  Histogram* request_prompt_tokens;
  Histogram* request_generation_tokens;
  Histogram* request_max_tokens;
  Histogram* request_n;
  Histogram* request_prefill_seconds;
  Histogram* request_decode_seconds;
  Histogram* request_inference_seconds;
  Histogram* request_token_seconds;
  Counter* finished_stop;
  Counter* finished_length;
  Counter* finished_abort;
  Counter* finished_error;
  // Of HTTP.
  Gauge* connections;
  Gauge* streams;
  Gauge* resident_bytes;
  Counter* rejected_queue_full;
  Counter* rejected_draining;
  Counter* slow_readers;
  Counter* Requests(const std::string& path, int status);

 private:
  struct Tier {
    std::vector<Gauge*> gauges = {};
    std::vector<Counter*> counters = {};
  };
  Tier host_, disk_;
};

}  // namespace cachalot
