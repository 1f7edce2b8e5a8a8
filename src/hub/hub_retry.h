// A hub's server as downloads see it: requests that are made again when the network, a full server or a rate limit
// stands in the way, and clear words for refusals.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "hub/hub_http.h"

namespace cachalot {

struct HubServerOptions {
  std::string endpoint = "https://huggingface.co";
  std::string token;
  HubHttpOptions http;
  int32_t max_attempts = 6;          // in a row without a byte gained
  int32_t first_pause_ms = 500;      // doubles with each attempt
  int32_t longest_pause_ms = 60'000;  // a longer Retry-After is an error
  std::function<void(const std::string& note)> on_retry = {};  // told before each further attempt, for people
};

class HubSession {
 public:
  static Result<HubSession> Open(HubServerOptions options);

  // Calls `attempt` until it is done or fails for good. It returns the response's status line in *head and sets *gained
  // when it got on (which starts the count of attempts anew). What comes back not ok after the last attempt is the error.
  struct Outcome {
    Status status;         // of the transfer
    HubResponseHead head;  // status 0: there was no answer
    bool gained = false;
    bool again = false;    // the answer was wrong, though not an error of HTTP
  };
  Status Run(const std::function<Outcome()>& attempt, const std::string& what);

  // A whole small answer.
  struct Text {
    std::string body;
    std::string next_url;
  };
  Result<Text> GetText(const std::string& url, int64_t max_bytes);

  const HubServerOptions& options() const { return *options_; }
  HubHttp& http() { return *http_; }

 private:
  std::shared_ptr<const HubServerOptions> options_;
  std::unique_ptr<HubHttp> http_;
};

}  // namespace cachalot
