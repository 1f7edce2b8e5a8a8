// GET /status: what runs now, as JSON: the numbers behind the page's live view.
#include <algorithm>

#include "server/api/json_text.h"
#include "server/routes/routes.h"

namespace cachalot {

void StatusRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange) {
  constexpr size_t kMaxListed = 256;
  const EngineLoop::Snapshot snapshot = context->loop->GetSnapshot();
  const EngineStats& stats = snapshot.stats;
  const int64_t now_us = SteadyNowUs();
  std::string groups;
  for (size_t g = 0; g < snapshot.kv_groups.size(); ++g) {
    const KvGroupInfo& group = snapshot.kv_groups[g];
    const int32_t used = g < stats.kv_blocks_used.size() ? stats.kv_blocks_used[g] : 0;
    const int64_t unused = g < stats.kv_unused_tokens.size() ? stats.kv_unused_tokens[g] : 0;
    const int32_t cached = g < stats.kv_blocks_cached.size() ? stats.kv_blocks_cached[g] : 0;
    groups += fmt::format("{}{{\"name\":{},\"block_tokens\":{},\"blocks\":{},\"blocks_used\":{},\"blocks_cached\":{},\"unused_tokens\":{}}}",
                          groups.empty() ? "" : ",", JsonString(group.name), group.block_tokens, group.num_blocks, used, cached, unused);
  }
  std::string requests;
  for (const auto& request : context->live.List(kMaxListed)) {
    requests += fmt::format(
        "{}{{\"id\":{},\"path\":{},\"age_ms\":{},\"choices\":{},\"stream\":{},\"prompt_tokens\":{},\"prompt_computed\":{},"
        "\"generated_tokens\":{}}}",
        requests.empty() ? "" : ",", JsonString(request->id), JsonString(request->endpoint), (now_us - request->arrival_us) / 1000,
        request->num_choices, request->streaming.load(), request->prompt_tokens.load(), request->prompt_computed.load(),
        request->generated.load());
  }
  const HttpCounters http = context->http != nullptr ? context->http->counters() : HttpCounters{};
  HttpResponse response;
  response.headers.emplace_back("Cache-Control", "no-store");
  response.body = fmt::format(
      "{{\"model\":{},\"version\":{},\"uptime_s\":{},\"draining\":{},\"context\":{},\"max_seqs\":{},\"running\":{},\"waiting\":{},"
      "\"steps\":{},\"step_prompt_tokens\":{},\"step_decode_tokens\":{},\"cache_query_tokens\":{},\"cache_hit_tokens\":{},\"prompt_tokens\":{},\"generated_tokens\":{},\"preemptions\":{},\"swap_preemptions\":{},\"recoveries\":{},\"tokens_per_second\":{:.1f},\"connections\":{},"
      "\"kv_identity\":{},\"kv_groups\":[{}],\"live_requests\":{},\"requests\":[{}]}}",
      JsonString(context->facts.names[0]), JsonString(context->options.version), (now_us - context->start_us) / 1'000'000,
      context->draining.load(), context->facts.max_context, snapshot.max_seqs, stats.running, stats.waiting, stats.steps,
      stats.step_prompt_tokens, stats.step_decode_tokens, stats.cache_query_tokens, stats.cache_hit_tokens,
      stats.prompt_tokens, stats.generated_tokens, stats.preemptions, stats.swap_preemptions, stats.recoveries, snapshot.tokens_per_second, http.connections, JsonString(snapshot.kv_identity), groups,
      context->live.size(), requests);
  exchange->Respond(std::move(response));
}

}  // namespace cachalot
