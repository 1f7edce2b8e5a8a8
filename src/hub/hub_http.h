// GET requests, one at a time: TLS with verified certificates, redirects, limits on everything that a server may send.
// Invariants: a token goes to the server it was meant for and to no other, whatever that one redirects to; no step waits
// longer than its timeout; what comes back is handed on in pieces and never kept.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "hub/hub_url.h"

namespace cachalot {

struct HubHttpOptions {
  int32_t connect_timeout_ms = 15'000;
  int32_t stall_timeout_ms = 30'000;  // without a byte
  int32_t max_redirects = 8;
  std::string ca_file = {};           // certificates to trust besides the system's
  std::string user_agent = "cachalot";
  std::function<bool()> cancelled = {};  // asked about ten times a second
};

struct HubRequest {
  HubUrl url;
  std::string token = {};   // "": none
  int64_t range_begin = 0;  // > 0: only from this byte on
};

struct HubResponseHead {
  int status = 0;
  int64_t content_length = -1;  // -1: not said
  // Of "Content-Range: bytes BEGIN-END/TOTAL"; -1: not said.
  int64_t range_begin = -1, range_total = -1;
  int64_t retry_after_s = -1;
  std::string next_url;  // of a Link header with rel="next"
  HubUrl url;            // that answered, behind all redirects
};

class HubHttp {
 public:
  explicit HubHttp(HubHttpOptions options);
  ~HubHttp();

  // on_head sees what is no redirect and decides by its Status whether the body is wanted; on_body gets it in pieces.
  // Errors: kDeadline for timeouts, kInternal for connections that fail or break, kCorrupt for answers that are no HTTP
  // or break a limit, kCancelled, and what the callbacks return.
  using OnHead = std::function<Status(const HubResponseHead& head)>;
  using OnBody = std::function<Status(std::span<const std::byte> piece)>;
  Status Get(const HubRequest& request, const OnHead& on_head, const OnBody& on_body);

  // What was asked last, behind all redirects so far: whose answer it is, or who gave none.
  const HubUrl& last_url() const { return last_url_; }
  const HubHttpOptions& options() const { return options_; }

 private:
  struct Tls;
  const HubHttpOptions options_;
  HubUrl last_url_;
  std::unique_ptr<Tls> tls_;  // made when first needed
};

// A pause that ends early, with kCancelled, when `cancelled` says so.
Status HubPause(int64_t milliseconds, const std::function<bool()>& cancelled);

}  // namespace cachalot
