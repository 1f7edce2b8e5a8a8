// GET / and /web/*: the page; GET /openapi.json: the description of the API. Files embedded at build time.
#include "server/api/api_error.h"
#include "server/embedded_files.h"
#include "server/routes/routes.h"

namespace cachalot {
namespace {

const char* ContentType(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  if (name.ends_with(".json")) return "application/json";
  return "application/octet-stream";
}

void AnswerFile(std::string_view name, const std::shared_ptr<Exchange>& exchange) {
  for (const EmbeddedFile& file : EmbeddedFiles()) {
    if (file.name != name) continue;
    HttpResponse response;
    response.content_type = ContentType(name);
    response.headers = {{"Cache-Control", "no-cache"}, {"X-Content-Type-Options", "nosniff"}};
    // The page loads nothing from elsewhere, and a model's answer can put nothing into it.
    if (name.ends_with(".html")) {
      response.headers.emplace_back("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'; base-uri 'none'");
    }
    response.body = file.content;
    return exchange->Respond(std::move(response));
  }
  exchange->Respond(ErrorResponse(ErrorOfStatus(404, "there is no such file")));
}

}  // namespace

void PageRoute(ServerContext*, const std::shared_ptr<Exchange>& exchange) {
  const std::string& path = exchange->request().path;
  if (path == "/") return AnswerFile("index.html", exchange);
  if (path == "/favicon.ico") return AnswerFile("icon.svg", exchange);
  AnswerFile(std::string_view(path).substr(std::string_view("/web/").size()), exchange);
}

void OpenApiRoute(ServerContext*, const std::shared_ptr<Exchange>& exchange) {
  AnswerFile("openapi.json", exchange);
}

}  // namespace cachalot
