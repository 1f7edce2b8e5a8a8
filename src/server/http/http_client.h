// An asynchronous HTTP/1.1 client for load: thousands of requests on one thread, connections reused, bodies seen as they
// arrive.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/http/http_message.h"

namespace cachalot {

struct HttpUrl {
  std::string host;
  std::string port = "80";
  std::string path;  // without a trailing slash
  bool tls = false;
};
// http://host[:port][/path], or https
Result<HttpUrl> ParseHttpUrl(std::string_view url);

struct LoadRequest {
  int64_t start_us = 0;  // not before, counted from the beginning of the run
  std::string body;
  std::string target = {};  // "": HttpLoadOptions::target
};

struct HttpLoadOptions {
  HttpUrl url;
  std::string target;            // of requests that name none
  HttpHeaders headers;
  int32_t max_concurrency = 0;   // 0: no limit
  int32_t wave = 0;              // > 0: requests go out this many at a time, and the next when all of them are answered
  int32_t timeout_ms = 600'000;  // of one request
  std::string ca_file = {};      // of https: certificates to trust beside the system's
};

// Called on the one thread that runs the load. Times are of the steady clock.
class LoadListener {
 public:
  virtual ~LoadListener() = default;
  // The next request; none: the load ends when all are answered. index counts from 0.
  virtual std::optional<LoadRequest> Next(int64_t index) = 0;
  virtual void OnSent(int64_t index, int64_t now_us) = 0;
  virtual void OnBody(int64_t index, int64_t now_us, std::string_view piece) = 0;
  // status 0: there was no whole response, and error says why.
  virtual void OnEnd(int64_t index, int64_t now_us, int status, const std::string& error) = 0;
  virtual bool stopped() const { return false; }
};

// Runs until every request has ended.
Status RunLoad(const HttpLoadOptions& options, LoadListener* listener);

// One POST, waited for.
Result<HttpResponse> FetchHttp(const HttpUrl& url, const std::string& target, const HttpHeaders& headers,
                               std::string body, int32_t timeout_ms = 30'000);

}  // namespace cachalot
