#include "server/request_line.h"
#include "server/router.h"

#include <algorithm>
#include <array>
#include <new>

#include "formats/text.h"
#include "server/api/api_error.h"
#include "server/long_work.h"
#include "server/routes/routes.h"

namespace cachalot {
namespace {

constexpr std::array kRoutes = {
    Route{"POST", "/v1/chat/completions", ChatCompletionsRoute},
    Route{"POST", "/v1/completions", CompletionsRoute},
    Route{"GET", "/v1/models", ListModelsRoute},
    Route{"GET", "/v1/models/*", GetModelRoute},
    Route{"POST", "/tokenize", TokenizeRoute},
    Route{"POST", "/detokenize", DetokenizeRoute},
    Route{"POST", "/apply-template", ApplyTemplateRoute},
    Route{"GET", "/health", HealthRoute, true},
    Route{"GET", "/ready", ReadyRoute, true},
    Route{"GET", "/metrics", MetricsRoute},
    Route{"GET", "/status", StatusRoute},
    Route{"GET", "/version", VersionRoute, false, false},
    Route{"GET", "/openapi.json", OpenApiRoute, false, false},
    Route{"GET", "/v1/cachalot/cache", CacheStateRoute},
    Route{"POST", "/v1/cachalot/cache", CacheActionRoute},
    // The page: plain files, the same for everybody. What it shows comes from routes that ask for the key.
    Route{"GET", "/", PageRoute, true, false},
    Route{"GET", "/web/*", PageRoute, true, false},
    Route{"GET", "/favicon.ico", PageRoute, true, false},
};

bool PathMatches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with("/*")) return pattern == path;
  pattern.remove_suffix(1);
  return path.size() > pattern.size() && path.starts_with(pattern);
}

// All keys are compared, to their ends, whichever is right. The tenant is named after the key's place, which says nothing
// of the key.
bool KeyIsKnown(const ServerContext& context, HttpRequest* asking) {
  const HttpRequest& request = *asking;
  const std::string_view bearer = BearerToken(request.Header("authorization"));
  const std::string_view other = request.Header("x-api-key");
  bool known = false;
  for (size_t i = 0; i < context.options.api_keys.size(); ++i) {
    const std::string& key = context.options.api_keys[i];
    const bool same = EqualInConstantTime(key, bearer) | EqualInConstantTime(key, other);
    if (same) asking->tenant = fmt::format("key{}", i);
    known |= same;
  }
  return known;
}

void AddCors(const ServerContext& context, const HttpRequest& request, HttpHeaders* headers) {
  const std::string_view origin = request.Header("origin");
  if (origin.empty() || context.options.cors_origins.empty()) return;
  const auto& allowed = context.options.cors_origins;
  const bool any = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
  headers->emplace_back("Vary", "Origin");
  if (!any && std::find(allowed.begin(), allowed.end(), origin) == allowed.end()) return;
  headers->emplace_back("Access-Control-Allow-Origin", any ? "*" : std::string(origin));
  headers->emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
}

void Preflight(const std::string& allow, const std::shared_ptr<Exchange>& exchange) {
  const std::string_view wanted = exchange->request().Header("access-control-request-headers");
  HttpResponse response;
  response.status = 204;
  response.content_type = "";
  response.headers = {{"Allow", allow},
                      {"Access-Control-Allow-Methods", allow},
                      {"Access-Control-Allow-Headers", wanted.empty() ? "Authorization, Content-Type" : std::string(wanted)},
                      {"Access-Control-Max-Age", "86400"}};
  exchange->Respond(std::move(response));
}

// What metrics call a path: what clients make up must not become names without end.
std::string MetricPath(const Route* route) {
  return route == nullptr ? "other" : route->path;
}

void Serve(ServerContext* context, const Route* route, const std::string& allow, const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  if (request.method == "OPTIONS") return Preflight(allow.empty() ? "GET, POST, OPTIONS" : allow, exchange);
  const bool open = route != nullptr && route->open;
  if (!open && !context->options.api_keys.empty() && !KeyIsKnown(*context, &exchange->mutable_request())) {
    return Refuse(*context, exchange.get(), ErrorOfStatus(401, "no API key, or an unknown one: send Authorization: Bearer KEY"));
  }
  if (allow.empty()) {
    return Refuse(*context, exchange.get(), ErrorOfStatus(404, fmt::format("there is no {}", Printable(request.path))));
  }
  if (route == nullptr) {
    const ApiError error =
        ErrorOfStatus(405, fmt::format("{} {}: the methods are {}", Printable(request.method), Printable(request.path), allow));
    LogRefused(*context, request, error);
    HttpResponse response = ErrorResponse(error);
    response.headers.emplace_back("Allow", allow);
    return exchange->Respond(std::move(response));
  }
  if (const std::string_view coding = request.Header("content-encoding"); !coding.empty() && coding != "identity") {
    return Refuse(*context, exchange.get(), ErrorOfStatus(415, fmt::format("Content-Encoding {}: bodies are taken as they are", Printable(coding, 60))));
  }
  if (route->needs_model && !context->loaded.load(std::memory_order_acquire)) {
    ApiError error = ErrorOfStatus(503, "the model is being loaded");
    error.code = "loading";
    error.retry_after_s = 1;
    return exchange->Respond(ErrorResponse(error));
  }
  route->handler(context, exchange);
}

}  // namespace

void RespondWith(ServerContext* context, const std::shared_ptr<Exchange>& exchange,
                 HttpResponse (*answer)(const ServerContext& context, const std::string& body)) {
  context->work->Run(exchange, [context, exchange, answer]() -> LongWork::Finish {
    const auto response = std::make_shared<HttpResponse>(answer(*context, exchange->request().body));
    return [exchange, response] { exchange->Respond(std::move(*response)); };
  });
}

std::span<const Route> AllRoutes() {
  return kRoutes;
}

void HandleExchange(ServerContext* context, const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  AddCors(*context, request, &exchange->response_headers);
  const Route* route = nullptr;
  std::string allow;
  for (const Route& row : kRoutes) {
    if (!PathMatches(row.path, request.path)) continue;
    const bool get = row.method == std::string_view("GET");
    if (!allow.empty()) allow += ", ";
    allow += get ? "GET, HEAD" : row.method;
    if (request.method == row.method || (get && request.method == "HEAD")) route = &row;
  }
  if (!allow.empty()) allow += ", OPTIONS";
  exchange->on_response = [context, path = MetricPath(route)](int status) {
    if (context->loaded.load(std::memory_order_acquire)) context->metrics->Requests(path, status)->Add();
  };
  try {
    Serve(context, route, allow, exchange);
  } catch (const std::exception& exception) {  // out of memory, or a mistake of ours: this request only
    AnswerException(exchange, exception.what());
  }
}

}  // namespace cachalot
