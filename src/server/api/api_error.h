// What a client gets when a request cannot be served: OpenAI's error object.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "server/http/http_message.h"

namespace cachalot {

struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  // "" becomes null
  std::string code;   // "" becomes null
  int retry_after_s = 0;
};

// {"error": {"message", "type", "param", "code"}}
std::string ErrorJson(const ApiError& error);
HttpResponse ErrorResponse(const ApiError& error);
// The error with the usual type and code for this HTTP status.
ApiError ErrorOfStatus(int status, std::string message);
// How an engine's status looks from outside: what the client caused is a 400, overload 429, the rest 500 or 503.
ApiError ErrorOf(const Status& status);

}  // namespace cachalot
