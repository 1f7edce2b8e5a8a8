// The lines of the request log: what one request to a generation endpoint asked, what it got, and how long that took; and who was
// refused before that.
#pragma once

#include <cstdint>
#include <string>

#include "server/api/reply.h"
#include "server/http/http_message.h"
#include "server/http/http_server.h"

namespace cachalot {

struct ServerContext;
struct ApiError;

struct RequestLine {
  std::string id;
  int status = 200;
  bool stream = false;
  std::string finish_reasons;  // of the choices, with commas between them
  int64_t num_choices = 0;
  Usage usage;
  int64_t queue_us = 0;        // the longest wait of a choice
  int64_t first_token_us = 0;  // this and the next two on the steady clock; 0: never came to that
  int64_t last_token_us = 0;
  int64_t end_us = 0;
  uint64_t seed = 0;
  int32_t priority = 0;
  std::string user;            // "": none was named
  std::string error;           // "": none
};

void LogRequest(const ServerContext& context, const HttpRequest& request, const RequestLine& line);
// Of one that is not begun.
void LogRefused(const ServerContext& context, const HttpRequest& request, const ApiError& error);
// Logs it, and responds with the error.
void Refuse(const ServerContext& context, Exchange* exchange, const ApiError& error);

}  // namespace cachalot
