// URLs as far as downloads need them. Invariant: the parts of a parsed URL hold no character that could end a line of an
// HTTP request.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace cachalot {

struct HubUrl {
  bool tls = true;
  std::string host;    // without the brackets of an IPv6 address
  std::string port;    // "443", "80" or what stands there
  std::string target;  // path and query, beginning with '/'

  bool SameOrigin(const HubUrl& other) const {
    return tls == other.tls && host == other.host && port == other.port;
  }
  // What a request's Host header has.
  std::string Authority() const;
  std::string Text() const;
};

// http://… or https://…; user names and passwords in a URL are refused.
Result<HubUrl> ParseHubUrl(std::string_view text);
// A Location header: a URL, or a path on the same server.
Result<HubUrl> ResolveHubUrl(const HubUrl& base, std::string_view location);
// A path with everything escaped that may not stand in one; '/' stays.
std::string EscapeUrlPath(std::string_view path);

}  // namespace cachalot
