#include "server/api/api_error.h"

#include "server/api/json_text.h"

namespace cachalot {

std::string ErrorJson(const ApiError& error) {
  std::string text = "{\"error\":{\"message\":";
  AppendJsonString(error.message, &text);
  text += ",\"type\":";
  AppendJsonString(error.type, &text);
  text += ",\"param\":";
  if (error.param.empty()) text += "null";
  else AppendJsonString(error.param, &text);
  text += ",\"code\":";
  if (error.code.empty()) text += "null";
  else AppendJsonString(error.code, &text);
  return text + "}}";
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  if (error.retry_after_s > 0) response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  response.body = ErrorJson(error);
  return response;
}

ApiError ErrorOfStatus(int status, std::string message) {
  ApiError error;
  error.status = status;
  error.message = std::move(message);
  switch (status) {
    case 401:
      error.type = "authentication_error";
      error.code = "invalid_api_key";
      break;
    case 404:
      error.type = "not_found_error";
      error.code = "not_found";
      break;
    case 405: error.code = "method_not_allowed"; break;
    case 408: error.code = "request_timeout"; break;
    case 413: error.code = "body_too_large"; break;
    case 415: error.code = "unsupported_media_type"; break;
    case 429:
      error.type = "rate_limit_error";
      error.code = "queue_full";
      break;
    case 431: error.code = "header_too_large"; break;
    case 504:
      error.type = "timeout_error";
      error.code = "deadline_exceeded";
      break;
    case 503:
      error.type = "unavailable_error";
      error.code = "unavailable";
      break;
    default:
      if (status >= 500) {
        error.type = "server_error";
        error.code = "internal_error";
      }
      break;
  }
  return error;
}

ApiError ErrorOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported:
    case StatusCode::kCorrupt:
    case StatusCode::kNotFound:
      return ErrorOfStatus(400, status.message());
    case StatusCode::kExhausted:
      return ErrorOfStatus(429, status.message());
    case StatusCode::kCancelled:
      return ErrorOfStatus(503, status.message());
    case StatusCode::kDeadline:
      return ErrorOfStatus(504, status.message());
    default:
      return ErrorOfStatus(500, status.message());
  }
}

}  // namespace cachalot
