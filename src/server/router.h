// From a request to its route: the table of endpoints, keys, CORS, and what is the same in every response.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "server/http/http_server.h"
#include "server/server_context.h"

namespace cachalot {

using RouteHandler = void (*)(ServerContext* context, const std::shared_ptr<Exchange>& exchange);

struct Route {
  const char* method;
  const char* path;       // ends with "/*": anything below
  RouteHandler handler;
  bool open = false;      // needs no key: nothing of the model or of requests shows
  bool needs_model = true;
};
std::span<const Route> AllRoutes();

void HandleExchange(ServerContext* context, const std::shared_ptr<Exchange>& exchange);

}  // namespace cachalot
