// GET /version
#include "server/api/json_text.h"
#include "server/routes/routes.h"

namespace cachalot {

void VersionRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  response.body = "{\"version\":" + JsonString(context->options.version) + "}";
  exchange->Respond(std::move(response));
}

}  // namespace cachalot
