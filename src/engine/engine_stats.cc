#include "engine/engine_stats.h"

#include <algorithm>

namespace cachalot {

void ReadStats(const Scheduler& scheduler, EngineStats* stats) {
  const SchedulerCounters& counters = scheduler.counters();
  stats->running = scheduler.num_running();
  stats->waiting = scheduler.num_waiting();
  stats->preemptions = scheduler.num_preemptions();
  stats->recompute_preemptions = counters.recomputes;
  stats->swap_preemptions = counters.swaps;
  stats->admitted = counters.admitted;
  stats->queue_us = counters.queue_us;
  stats->prompt_budget = scheduler.prompt_budget();
  stats->cache_query_tokens = counters.cache_query_tokens;
  stats->cache_hit_tokens = counters.cache_hit_tokens;
  stats->draft_rows = counters.draft_rows;
  stats->draft_tokens = counters.draft_tokens;
  stats->accepted_tokens = counters.accepted_tokens;
  for (size_t i = 0; i < stats->accepted_by_position.size(); ++i) stats->accepted_by_position[i] = counters.accepted_by_position[i];
  stats->sampling_rows = counters.sampling_rows;
  stats->sampled_tokens = counters.sampled_tokens;
  stats->cache_evictions = scheduler.blocks().num_evictions();
  for (size_t g = 0; g < stats->kv_blocks_used.size(); ++g) {
    const KvGroupUsage usage = scheduler.blocks().Usage(static_cast<int32_t>(g));
    stats->kv_blocks_used[g] = usage.num_used;
    stats->kv_blocks_cached[g] = usage.num_cached;
    stats->kv_blocks_pinned[g] = usage.num_pinned;
    stats->kv_unused_tokens[g] = usage.unused_tokens;
  }
}

void CountExperts(const StepResult& result, int32_t num_experts, EngineStats* stats) {
  if (num_experts == 0) return;
  const size_t num_layers = result.expert_counts.size() / static_cast<size_t>(num_experts);
  stats->moe_activation_ratio.resize(num_layers);
  for (size_t layer = 0; layer < num_layers; ++layer) {
    const auto begin = result.expert_counts.begin() + static_cast<int64_t>(layer) * num_experts;
    const auto idle = std::count(begin, begin + num_experts, 0);
    const double ratio = 1.0 - static_cast<double>(idle) / static_cast<double>(num_experts);
    double& mean = stats->moe_activation_ratio[layer];
    mean += (ratio - mean) / static_cast<double>(stats->steps);
  }
}

}  // namespace cachalot
