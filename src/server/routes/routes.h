// The handlers of all endpoints, one file each. They run on a connection's thread and answer at once, or hand the exchange
// to a Generation; what long bodies take is done elsewhere (long_work.h).
#pragma once

#include <memory>

#include "server/http/http_server.h"
#include "server/server_context.h"

namespace cachalot {

// Responds with what `answer` makes of the body.
void RespondWith(ServerContext* context, const std::shared_ptr<Exchange>& exchange,
                 HttpResponse (*answer)(const ServerContext& context, const std::string& body));

void ChatCompletionsRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange);
void CompletionsRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange);
void ListModelsRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange);
void GetModelRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange);
void TokenizeRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange);
void DetokenizeRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange);
void ApplyTemplateRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange);
void HealthRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange);
void ReadyRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange);
void MetricsRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange);
void CacheStateRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange);
void CacheActionRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange);
void StatusRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange);
void VersionRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange);
void OpenApiRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange);
void PageRoute(ServerContext* context, const std::shared_ptr<Exchange>& exchange);

}  // namespace cachalot
