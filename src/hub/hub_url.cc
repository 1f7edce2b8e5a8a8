#include "hub/hub_url.h"

#include <algorithm>
#include <charconv>

#include "formats/text.h"

namespace cachalot {
namespace {

bool IsPlain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

}  // namespace

std::string HubUrl::Authority() const {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return port == (tls ? "443" : "80") ? name : name + ":" + port;
}

std::string HubUrl::Text() const { return (tls ? "https://" : "http://") + Authority() + target; }

Result<HubUrl> ParseHubUrl(std::string_view text) {
  HubUrl url;
  const auto bad = [&](std::string_view why) { return InvalidArgument("'{}' is no URL: {}", Printable(text), why); };
  if (text.size() > 16384) return InvalidArgument("a URL of {} bytes, the limit is 16384", text.size());
  if (!IsPlain(text)) return bad("it has spaces, control characters or letters beyond ASCII");
  std::string_view rest = text;
  if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
    url.tls = false;
  } else {
    return bad("it must begin with https:// or http://");
  }
  rest = rest.substr(0, rest.find('#'));
  const size_t end = std::min(rest.find_first_of("/?"), rest.size());
  std::string_view authority = rest.substr(0, end);
  url.target = rest.substr(end);
  if (!url.target.starts_with('/')) url.target.insert(0, "/");
  if (authority.find('@') != std::string_view::npos) return bad("user names are not taken");
  if (authority.starts_with('[')) {
    const size_t close = authority.find(']');
    if (close == std::string_view::npos) return bad("'[' without ']'");
    url.host = authority.substr(1, close - 1);
    authority.remove_prefix(close + 1);
  } else {
    url.host = authority.substr(0, authority.find(':'));
    authority.remove_prefix(url.host.size());
  }
  if (url.host.empty()) return bad("there is no host");
  std::transform(url.host.begin(), url.host.end(), url.host.begin(),
                 [](unsigned char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  url.port = url.tls ? "443" : "80";
  if (authority.empty()) return url;
  int port = 0;
  const std::string_view digits = authority.substr(1);
  const auto [at, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (authority[0] != ':' || error != std::errc() || at != digits.data() + digits.size() || port < 1 || port > 65535)
    return bad("the port must be 1..65535");
  url.port = std::to_string(port);
  return url;
}

Result<HubUrl> ResolveHubUrl(const HubUrl& base, std::string_view location) {
  if (location.starts_with("//")) return ParseHubUrl((base.tls ? "https:" : "http:") + std::string(location));
  if (!location.starts_with('/')) return ParseHubUrl(location);
  HubUrl url = base;
  url.target.clear();
  return ParseHubUrl(url.Text() + std::string(location));
}

std::string EscapeUrlPath(std::string_view path) {
  constexpr std::string_view kAsIs = "-._~/";
  std::string out;
  for (const char c : path) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter || kAsIs.find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

}  // namespace cachalot
