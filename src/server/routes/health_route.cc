// GET /health: whether the engine lives and moves. GET /ready: whether new requests are taken.
#include "server/api/api_error.h"
#include "server/routes/routes.h"

namespace cachalot {
namespace {

void Answer(const Status& status, const char* good, const std::shared_ptr<Exchange>& exchange) {
  if (!status.ok()) return exchange->Respond(ErrorResponse(ErrorOfStatus(503, status.message())));
  HttpResponse response;
  response.body = fmt::format("{{\"status\":\"{}\"}}", good);
  response.headers.emplace_back("Cache-Control", "no-store");
  exchange->Respond(std::move(response));
}

}  // namespace

void HealthRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange) {
  Answer(context->loop->Health(), "ok", exchange);
}

void ReadyRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange) {
  Answer(context->draining ? Cancelled("the server is shutting down") : context->loop->Health(), "ready", exchange);
}

}  // namespace cachalot
