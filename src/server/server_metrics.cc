#include "server/server_metrics.h"

#include <span>

#include <algorithm>

namespace cachalot {

ServerMetrics::ServerMetrics(MetricRegistry* r, const ExecutorInfo& info) : registry(r) {
  running = r->AddGauge("cachalot:requests_running", "Requests that take part in steps.");
  r->Alias("cachalot:requests_running", "vllm:num_requests_running");
  waiting = r->AddGauge("cachalot:requests_waiting", "Requests that wait for a place.");
  r->Alias("cachalot:requests_waiting", "vllm:num_requests_waiting");
  kv_usage = r->AddGauge("cachalot:kv_cache_usage_ratio", "Used part of the fullest KV group, 0 to 1.");
  r->Alias("cachalot:kv_cache_usage_ratio", "vllm:kv_cache_usage_perc");
  r->Alias("cachalot:kv_cache_usage_ratio", "vllm:gpu_cache_usage_perc");
  for (const auto& group : info.kv_groups) {
    kv_blocks_used.push_back(r->AddGauge("cachalot:kv_blocks_used", "KV blocks in use.", {{"group", group.name}}));
  }
  for (const auto& group : info.kv_groups) {
    kv_blocks_cached.push_back(
        r->AddGauge("cachalot:kv_blocks_cached", "KV blocks that hold prefixes for later requests.", {{"group", group.name}}));
  }
  for (const auto& group : info.kv_groups) {
    kv_blocks_pinned.push_back(
        r->AddGauge("cachalot:kv_blocks_pinned", "Cached KV blocks that give way after all others.", {{"group", group.name}}));
  }
  cache_evictions = r->AddCounter("cachalot:prefix_cache_evictions_total", "Cached KV blocks that gave way.");
  for (const auto& group : info.kv_groups) {
    r->AddGauge("cachalot:kv_blocks", "KV blocks that there are.", {{"group", group.name}})->Set(group.num_blocks);
  }
  if (!info.kv_groups.empty()) {
    const auto& group = info.kv_groups[0];
    r->AddGauge("cachalot:cache_config_info", "Sizes of the KV cache, as labels.",
                {{"block_size", std::to_string(group.block_tokens)},
                 {"num_gpu_blocks", std::to_string(group.num_blocks)}})
        ->Set(1);
    r->Alias("cachalot:cache_config_info", "vllm:cache_config_info");
  }
  steps = r->AddCounter("cachalot:engine_steps_total", "Steps of the engine.");
  preemptions = r->AddCounter("cachalot:preemptions_total", "Requests put back because KV memory ran out.");
  r->Alias("cachalot:preemptions_total", "vllm:num_preemptions_total");
  draft_rows = r->AddCounter("cachalot:spec_decode_num_drafts_total", "Times that tokens were drafted for a sequence.");
  r->Alias("cachalot:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts_total");
  draft_tokens = r->AddCounter("cachalot:spec_decode_num_draft_tokens_total", "Tokens that were drafted.");
  r->Alias("cachalot:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total");
  accepted_tokens = r->AddCounter("cachalot:spec_decode_num_accepted_tokens_total", "Drafted tokens that were right.");
  r->Alias("cachalot:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_total");
  tokens_per_step = r->AddGauge("cachalot:tokens_per_sequence_step", "Tokens that a step brings a sequence that decodes, on average so far.");
  prompt_tokens = r->AddCounter("cachalot:prompt_tokens_total", "Prompt tokens of requests that were begun.");
  r->Alias("cachalot:prompt_tokens_total", "vllm:prompt_tokens_total");
  cached_tokens = r->AddCounter("cachalot:prompt_tokens_cached_total", "Of them, those that came from the prefix cache.");
  r->Alias("cachalot:prompt_tokens_cached_total", "vllm:prompt_tokens_cached_total");
  generation_tokens = r->AddCounter("cachalot:generation_tokens_total", "Tokens generated.");
  r->Alias("cachalot:generation_tokens_total", "vllm:generation_tokens_total");
  step_seconds = r->AddHistogram("cachalot:step_seconds", "Time of one step, host and device.", LatencyEdges());
  step_host_seconds = r->AddHistogram(
      "cachalot:step_host_seconds", "Of a step, what the host did beside waiting for the device or computing in its place.", LatencyEdges());
  step_launch_seconds = r->AddHistogram("cachalot:step_launch_seconds", "Of a step, what its launch took (on a CPU: the step itself).", LatencyEdges());
  step_wait_seconds = r->AddHistogram("cachalot:step_wait_seconds", "Of a step, what the host waited for the device, or computed in its place.", LatencyEdges());
  step_tokens = r->AddHistogram("cachalot:step_tokens", "Tokens of one step.", SizeEdges(info.max_step_tokens));
  r->Alias("cachalot:step_tokens", "vllm:iteration_tokens_total");
  step_prompt_tokens = r->AddHistogram("cachalot:step_prompt_tokens", "Prompt tokens of one step.", SizeEdges(info.max_step_tokens));
  step_decode_tokens = r->AddHistogram("cachalot:step_decode_tokens", "Decoded tokens of one step.", SizeEdges(info.max_step_tokens));
  queue_seconds = r->AddHistogram("cachalot:request_queue_time_seconds", "From a request's arrival at the engine to its first step.", LatencyEdges());
  r->Alias("cachalot:request_queue_time_seconds", "vllm:request_queue_time_seconds");
  inter_token_seconds =
      r->AddHistogram("cachalot:inter_token_latency_seconds", "Time between two tokens of a request.", LatencyEdges());
  r->Alias("cachalot:inter_token_latency_seconds", "vllm:inter_token_latency_seconds");
  r->Alias("cachalot:inter_token_latency_seconds", "vllm:time_per_output_token_seconds");
  first_token_seconds = r->AddHistogram("cachalot:time_to_first_token_seconds",
                                        "From a request's arrival to its first token.", LatencyEdges());
  r->Alias("cachalot:time_to_first_token_seconds", "vllm:time_to_first_token_seconds");
  e2e_seconds =
      r->AddHistogram("cachalot:e2e_request_latency_seconds", "From a request's arrival to its end.", LatencyEdges());
  r->Alias("cachalot:e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds");
  const double max_tokens = std::max(1000.0, static_cast<double>(info.max_context));
  request_prompt_tokens =
      r->AddHistogram("cachalot:request_prompt_tokens", "Prompt tokens of a request.", SizeEdges(max_tokens));
  r->Alias("cachalot:request_prompt_tokens", "vllm:request_prompt_tokens");
  request_generation_tokens =
      r->AddHistogram("cachalot:request_generation_tokens", "Tokens that a request generated.", SizeEdges(max_tokens));
  r->Alias("cachalot:request_generation_tokens", "vllm:request_generation_tokens");
  r->Alias("cachalot:request_generation_tokens", "vllm:request_max_num_generation_tokens");
  request_max_tokens = r->AddHistogram("cachalot:request_max_tokens", "Tokens that a request may generate.", SizeEdges(max_tokens));
  r->Alias("cachalot:request_max_tokens", "vllm:request_params_max_tokens");
  request_n = r->AddHistogram("cachalot:request_n", "Answers that a request wants.", SizeEdges(1000));
  r->Alias("cachalot:request_n", "vllm:request_params_n");
  request_prefill_seconds = r->AddHistogram("cachalot:request_prefill_time_seconds", "From a request's first step to its first token.", LatencyEdges());
  r->Alias("cachalot:request_prefill_time_seconds", "vllm:request_prefill_time_seconds");
  request_decode_seconds = r->AddHistogram("cachalot:request_decode_time_seconds", "From a request's first token to its last.", LatencyEdges());
  r->Alias("cachalot:request_decode_time_seconds", "vllm:request_decode_time_seconds");
  request_inference_seconds = r->AddHistogram("cachalot:request_inference_time_seconds", "From a request's first step to its last token.", LatencyEdges());
  r->Alias("cachalot:request_inference_time_seconds", "vllm:request_inference_time_seconds");
  request_token_seconds = r->AddHistogram("cachalot:request_time_per_output_token_seconds", "A request's mean time between two tokens.", LatencyEdges());
  r->Alias("cachalot:request_time_per_output_token_seconds", "vllm:request_time_per_output_token_seconds");
  // Routers ask for it; there are no adapters.
  r->AddGauge("cachalot:lora_requests_info", "Adapters in use, as labels: none.",
              {{"max_lora", "0"}, {"running_lora_adapters", ""}, {"waiting_lora_adapters", ""}});
  r->Alias("cachalot:lora_requests_info", "vllm:lora_requests_info");
  prefix_queries = r->AddCounter("cachalot:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.");
  r->Alias("cachalot:prefix_cache_queries_total", "vllm:prefix_cache_queries_total");
  prefix_hits = r->AddCounter("cachalot:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.");
  r->Alias("cachalot:prefix_cache_hits_total", "vllm:prefix_cache_hits_total");
  const auto finished = [&](const char* reason) {
    return r->AddCounter("cachalot:request_success_total", "Requests that ended, by how.", {{"finished_reason", reason}});
  };
  finished_stop = finished("stop");
  finished_length = finished("length");
  finished_abort = finished("abort");
  finished_error = finished("error");
  r->Alias("cachalot:request_success_total", "vllm:request_success_total");
  connections = r->AddGauge("cachalot:http_connections", "Open connections.");
  streams = r->AddGauge("cachalot:http_streams", "Responses that are being streamed.");
  resident_bytes = r->AddGauge("cachalot:resident_memory_bytes", "Resident memory of the process.");
  const auto rejected = [&](const char* reason) {
    return r->AddCounter("cachalot:requests_rejected_total", "Requests refused because of load.", {{"reason", reason}});
  };
  rejected_queue_full = rejected("queue_full");
  rejected_draining = rejected("draining");
  slow_readers = r->AddCounter("cachalot:slow_readers_total", "Streams ended because the client did not read.");
}

void ServerMetrics::AddDraftPositions(size_t count) {
  const char* name = "cachalot:spec_decode_num_accepted_tokens_per_pos_total";
  for (size_t i = accepted_by_position.size(); i < count; ++i) {
    accepted_by_position.push_back(registry->AddCounter(name, "Drafted tokens that were right, by their place in the draft.",
                                                        {{"position", std::to_string(i)}}));
    if (i == 0) registry->Alias(name, "vllm:spec_decode_num_accepted_tokens_per_pos_total");
  }
}

namespace {

struct TierGauge {
  const char* name;
  const char* help;
  double (*value)(const KvTierStats& stats);
};
struct TierCounter {
  const char* name;
  const char* help;
  int64_t KvTierStats::*value;
};
constexpr TierGauge kHostGauges[] = {
    {"cachalot:kv_host_blocks", "KV blocks in the host's memory.", [](const KvTierStats& s) { return static_cast<double>(s.blocks); }},
    {"cachalot:kv_host_bytes", "Bytes of the KV cache in the host's memory.", [](const KvTierStats& s) { return static_cast<double>(s.bytes); }},
    {"cachalot:kv_host_read_bytes_per_second", "Measured rate of copies to the device.", [](const KvTierStats& s) { return s.read_bytes_per_second; }},
};
constexpr TierCounter kHostCounters[] = {
    {"cachalot:kv_host_hit_blocks_total", "KV blocks that requests found in the host's memory and not on the device.", &KvTierStats::hit_blocks},
    {"cachalot:kv_host_promoted_blocks_total", "Of them, those that were copied to the device.", &KvTierStats::promoted_blocks},
    {"cachalot:kv_host_promotions_total", "Requests for which some were.", &KvTierStats::promotions},
    {"cachalot:kv_host_declined_total", "Requests for which computing was the faster way.", &KvTierStats::declined},
    {"cachalot:kv_host_given_up_total", "Promotions that took too long.", &KvTierStats::given_up},
    {"cachalot:kv_host_written_bytes_total", "Bytes of KV blocks copied from the device.", &KvTierStats::written_bytes},
    {"cachalot:kv_host_refused_blocks_total", "KV blocks that gave way on the device before they were copied.", &KvTierStats::refused_blocks},
    {"cachalot:kv_host_evicted_blocks_total", "KV blocks in the host's memory that gave way.", &KvTierStats::evicted_blocks},
};
constexpr TierGauge kDiskGauges[] = {
    {"cachalot:kv_disk_blocks", "KV blocks on disk.", [](const KvTierStats& s) { return static_cast<double>(s.blocks); }},
    {"cachalot:kv_disk_bytes", "Bytes of the KV cache on disk.", [](const KvTierStats& s) { return static_cast<double>(s.bytes); }},
    {"cachalot:kv_disk_read_bytes_per_second", "Measured rate of its reads.", [](const KvTierStats& s) { return s.read_bytes_per_second; }},
};
constexpr TierCounter kDiskCounters[] = {
    {"cachalot:kv_disk_hit_blocks_total", "KV blocks that requests found on disk and not in memory.", &KvTierStats::hit_blocks},
    {"cachalot:kv_disk_promoted_blocks_total", "Of them, those that were brought into memory.", &KvTierStats::promoted_blocks},
    {"cachalot:kv_disk_promotions_total", "Requests that waited for blocks from disk.", &KvTierStats::promotions},
    {"cachalot:kv_disk_declined_total", "Requests for which computing was the faster way.", &KvTierStats::declined},
    {"cachalot:kv_disk_given_up_total", "Promotions that took too long.", &KvTierStats::given_up},
    {"cachalot:kv_disk_written_bytes_total", "Bytes of KV blocks written.", &KvTierStats::written_bytes},
    {"cachalot:kv_disk_read_bytes_total", "Bytes of KV blocks read.", &KvTierStats::read_bytes},
    {"cachalot:kv_disk_refused_blocks_total", "KV blocks not written: the disk does not keep up, or failed.", &KvTierStats::refused_blocks},
    {"cachalot:kv_disk_evicted_blocks_total", "KV blocks on disk that gave way.", &KvTierStats::evicted_blocks},
    {"cachalot:kv_disk_unreadable_blocks_total", "KV blocks on disk that were not what was written.", &KvTierStats::unreadable_blocks},
    {"cachalot:kv_disk_write_errors_total", "Writes that failed.", &KvTierStats::write_errors},
};

}  // namespace

void ServerMetrics::ShowTiers(const KvTierStats& host, const KvTierStats& disk) {
  const auto show = [this](const KvTierStats& stats, std::span<const TierGauge> gauges, std::span<const TierCounter> counters, Tier* tier) {
    if (!stats.present) return;
    if (tier->gauges.empty()) {
      for (const TierGauge& gauge : gauges) tier->gauges.push_back(registry->AddGauge(gauge.name, gauge.help));
      for (const TierCounter& counter : counters) tier->counters.push_back(registry->AddCounter(counter.name, counter.help));
    }
    for (size_t i = 0; i < gauges.size(); ++i) tier->gauges[i]->Set(gauges[i].value(stats));
    for (size_t i = 0; i < counters.size(); ++i) tier->counters[i]->AdvanceTo(static_cast<uint64_t>(stats.*counters[i].value));
  };
  show(host, kHostGauges, kHostCounters, &host_);
  show(disk, kDiskGauges, kDiskCounters, &disk_);
}

Counter* ServerMetrics::Requests(const std::string& path, int status) {
  return registry->AddCounter("cachalot:http_requests_total", "Requests by path and status.",
                              {{"path", path}, {"code", std::to_string(status)}});
}

}  // namespace cachalot
