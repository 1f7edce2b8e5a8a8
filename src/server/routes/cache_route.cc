// /v1/cachalot/cache: what the prefix cache holds (GET), and what to do about it (POST): {"action": "flush"}, or
// {"action": "pin" | "unpin"} with the "prompt" (text or token ids) or the "messages" whose beginning is meant. A key
// pins only what was cached for it; what is cached for others it can neither see nor pin.
#include <nlohmann/json.hpp>

#include "formats/text.h"
#include "server/api/chat_request.h"
#include "server/api/json_text.h"
#include "server/routes/routes.h"

namespace cachalot {
namespace {

constexpr size_t kMaxNameBytes = 1024;
constexpr size_t kMaxPromptTokens = size_t{1} << 24;

struct CacheAction {
  std::string action;
  std::vector<int32_t> prompt_ids;
  std::string cache_salt;
};

std::optional<ApiError> ReadPrompt(const ServerContext& context, const ChatJson& body, FieldReader* fields, std::vector<int32_t>* ids) {
  if (fields->Find("messages") != nullptr) {
    RenderedPrompt prompt;
    if (auto error = RenderChat(body, *context.bundle, &prompt)) return error;
    return EncodeChat(prompt, *context.bundle, ids);
  }
  const ChatJson* prompt = fields->Find("prompt");
  if (prompt == nullptr) {
    fields->Fail("prompt", "prompt is missing: a text or token ids (or messages: a conversation)", "missing_field");
  } else if (prompt->is_array()) {
    *ids = fields->TokenIds("prompt", kMaxPromptTokens, context.facts.vocab_size);
  } else {
    const std::string text = fields->String("prompt", "", static_cast<size_t>(context.facts.max_prompt_bytes));
    if (!fields->ok()) return fields->error();
    Result<std::vector<int32_t>> encoded = context.bundle->tokenizer->Encode(text, {.add_special = true, .parse_special = true});
    if (!encoded.ok()) return ErrorOf(encoded.status());
    *ids = std::move(*encoded);
  }
  return fields->error();
}

std::optional<ApiError> ReadAction(const ServerContext& context, const HttpRequest& request, CacheAction* action) {
  ChatJson body;
  if (auto error = ParseBody(request.body, &body)) return error;
  FieldReader fields(body);
  action->action = fields.String("action", "", kMaxNameBytes);
  action->cache_salt = request.tenant + '/' + fields.String("cache_salt", "", kMaxNameBytes);
  if (fields.ok() && action->action != "flush" && action->action != "pin" && action->action != "unpin") {
    fields.Fail("action", fmt::format("action is \"{}\": must be flush, pin or unpin", Printable(action->action)));
  }
  if (!fields.ok() || action->action == "flush") return fields.error();
  return ReadPrompt(context, body, &fields, &action->prompt_ids);
}

void Act(ServerContext* context, const std::shared_ptr<Exchange>& exchange, CacheAction action) {
  const bool posted = context->loop->Post([context, exchange, action = std::move(action)](Engine* engine) -> std::function<void()> {
    std::string body;
    if (action.action == "flush") {
      engine->FlushCache();
      if (context->responses) context->responses->Clear();
      body = "{\"action\":\"flush\"}";
    } else {
      const int32_t num_tokens = engine->PinPrefix(action.prompt_ids, action.cache_salt, action.action == "pin");
      body = fmt::format("{{\"action\":{},\"prompt_tokens\":{},\"cached_tokens\":{}}}", JsonString(action.action),
                         action.prompt_ids.size(), num_tokens);
    }
    return [exchange, body] {
      exchange->Post([exchange, body] {
        HttpResponse response;
        response.body = body;
        if (!exchange->closed()) exchange->Respond(std::move(response));
      });
    };
  });
  if (!posted) exchange->Respond(ErrorResponse(ErrorOf(Cancelled("the server is stopping"))));
}

}  // namespace

void CacheStateRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange) {
  const EngineLoop::Snapshot snapshot = context->loop->GetSnapshot();
  const EngineStats& stats = snapshot.stats;
  const auto of = [](const std::vector<int32_t>& counts, size_t g) { return g < counts.size() ? counts[g] : 0; };
  std::string groups;
  for (size_t g = 0; g < snapshot.kv_groups.size(); ++g) {
    const KvGroupInfo& group = snapshot.kv_groups[g];
    groups += fmt::format("{}{{\"name\":{},\"block_tokens\":{},\"blocks\":{},\"blocks_used\":{},\"blocks_cached\":{},\"blocks_pinned\":{}}}",
                          groups.empty() ? "" : ",", JsonString(group.name), group.block_tokens, group.num_blocks,
                          of(stats.kv_blocks_used, g), of(stats.kv_blocks_cached, g), of(stats.kv_blocks_pinned, g));
  }
  std::string tiers;
  if (const KvTierStats& host = stats.kv_host; host.present) {
    tiers += fmt::format(",\"host\":{{\"blocks\":{},\"bytes\":{},\"max_bytes\":{},\"hit_blocks\":{},\"promoted_blocks\":{},\"promotions\":{},"
                         "\"declined\":{},\"given_up\":{},\"written_bytes\":{},\"refused_blocks\":{},\"evicted_blocks\":{},\"read_bytes_per_second\":{:.0f},"
                         "\"prefill_tokens_per_second\":{:.1f}}}",
                         host.blocks, host.bytes, host.max_bytes, host.hit_blocks, host.promoted_blocks, host.promotions, host.declined, host.given_up,
                         host.written_bytes, host.refused_blocks, host.evicted_blocks, host.read_bytes_per_second, host.prefill_tokens_per_second);
  }
  if (const KvTierStats& disk = stats.kv_disk; disk.present) {
    tiers += fmt::format(",\"disk\":{{\"blocks\":{},\"bytes\":{},\"max_bytes\":{},\"hit_blocks\":{},\"promoted_blocks\":{},\"promotions\":{},"
                         "\"declined\":{},\"given_up\":{},\"written_bytes\":{},\"read_bytes\":{},\"refused_blocks\":{},\"evicted_blocks\":{},"
                         "\"unreadable_blocks\":{},\"write_errors\":{},\"read_bytes_per_second\":{:.0f},\"prefill_tokens_per_second\":{:.1f}}}",
                         disk.blocks, disk.bytes, disk.max_bytes, disk.hit_blocks, disk.promoted_blocks, disk.promotions, disk.declined,
                         disk.given_up, disk.written_bytes, disk.read_bytes, disk.refused_blocks, disk.evicted_blocks,
                         disk.unreadable_blocks, disk.write_errors, disk.read_bytes_per_second, disk.prefill_tokens_per_second);
  }
  HttpResponse response;
  response.headers.emplace_back("Cache-Control", "no-store");
  response.body = fmt::format("{{\"policy\":{},\"query_tokens\":{},\"hit_tokens\":{},\"evicted_blocks\":{},\"groups\":[{}]{}}}",
                              JsonString(context->options.kv_policy), stats.cache_query_tokens, stats.cache_hit_tokens,
                              stats.cache_evictions, groups, tiers);
  exchange->Respond(std::move(response));
}

void CacheActionRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange) {
  context->work->Run(exchange, [context, exchange]() -> LongWork::Finish {
    CacheAction action;
    if (auto error = ReadAction(*context, exchange->request(), &action)) {
      return [exchange, error = std::move(*error)] { exchange->Respond(ErrorResponse(error)); };
    }
    return [context, exchange, action = std::move(action)] { Act(context, exchange, action); };
  });
}

}  // namespace cachalot
