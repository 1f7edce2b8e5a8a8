#include "server/request_line.h"

#include <chrono>

#include "formats/text.h"
#include "server/api/api_error.h"
#include "server/api/json_text.h"
#include "server/server_context.h"

namespace cachalot {
namespace {

constexpr size_t kMaxErrorBytes = 300;  // a client's mistake may be long

double UnixNow() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

void LogRequest(const ServerContext& context, const HttpRequest& request, const RequestLine& line) {
  if (context.request_log == nullptr) return;
  const auto ms = [](int64_t from, int64_t to) { return from == 0 || to == 0 ? 0.0 : static_cast<double>(to - from) * 1e-3; };
  const int64_t gaps = line.usage.completion_tokens - line.num_choices;
  const double itl = gaps > 0 ? ms(line.first_token_us, line.last_token_us) * static_cast<double>(line.num_choices) / static_cast<double>(gaps) : 0.0;
  std::string text = fmt::format(
      "{{\"event\":\"request\",\"time\":{:.3f},\"id\":{},\"path\":{},\"peer\":{},\"status\":{},\"stream\":{},\"finish_reason\":{},"
      "\"choices\":{},\"prompt_tokens\":{},\"cached_tokens\":{},\"completion_tokens\":{},\"reasoning_tokens\":{},\"queue_ms\":{:.3f},"
      "\"ttft_ms\":{:.3f},\"e2e_ms\":{:.3f},\"itl_ms\":{:.3f},\"seed\":{},\"priority\":{}",
      UnixNow(), JsonString(line.id), JsonString(request.path), JsonString(request.peer), line.status, line.stream,
      JsonString(line.finish_reasons), line.num_choices, line.usage.prompt_tokens, line.usage.cached_tokens, line.usage.completion_tokens,
      line.usage.reasoning_tokens, static_cast<double>(line.queue_us) * 1e-3, ms(request.arrival_us, line.first_token_us),
      ms(request.arrival_us, line.end_us), itl, line.seed, line.priority);
  if (!request.tenant.empty()) text += ",\"key\":" + JsonString(request.tenant);
  if (!line.user.empty()) text += ",\"user\":" + JsonString(line.user);
  if (!line.error.empty()) text += ",\"error\":" + JsonString(line.error);
  context.request_log->Write(text + "}");
}

void LogRefused(const ServerContext& context, const HttpRequest& request, const ApiError& error) {
  if (context.request_log == nullptr) return;
  std::string text = fmt::format("{{\"event\":\"request\",\"time\":{:.3f},\"path\":{},\"peer\":{},\"status\":{}", UnixNow(),
                                 JsonString(request.path), JsonString(request.peer), error.status);
  if (!request.tenant.empty()) text += ",\"key\":" + JsonString(request.tenant);
  context.request_log->Write(text + ",\"error\":" + JsonString(Printable(error.message, kMaxErrorBytes)) + "}");
}

void Refuse(const ServerContext& context, Exchange* exchange, const ApiError& error) {
  LogRefused(context, exchange->request(), error);
  exchange->Respond(ErrorResponse(error));
}

}  // namespace cachalot
