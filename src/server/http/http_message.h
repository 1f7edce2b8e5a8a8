// One HTTP request and one response as plain data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cachalot {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string path;       // percent-decoded where that is unambiguous; without the query
  std::string query;      // after the '?', as it came
  HttpHeaders headers;    // names in lower case
  std::string body;
  std::string peer;       // address of the client
  std::string tenant;     // who asks, once the key is known
  bool http_1_1 = true;   // false: 1.0, which knows no chunks
  int64_t arrival_us = 0;  // steady clock, when the header was complete

  // The first header of this (lower case) name; "" where there is none.
  std::string_view Header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers = {};
  std::string body = {};
};

// "Not Found", …
std::string_view HttpReason(int status);
// Path and query of a request target; false when it is no path, or its escapes are wrong.
bool SplitTarget(std::string_view target, std::string* path, std::string* query);
// True when both are the same; the time does not tell where they differ.
bool EqualInConstantTime(std::string_view a, std::string_view b);
// The token of "Bearer TOKEN"; "" otherwise.
std::string_view BearerToken(std::string_view authorization);

}  // namespace cachalot
