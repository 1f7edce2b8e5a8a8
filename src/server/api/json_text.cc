#include "server/api/json_text.h"

#include <fmt/format.h>

#include <cmath>

#include "tokenizer/utf8.h"

namespace cachalot {

void AppendJsonString(std::string_view text, std::string* out) {
  std::string repaired;
  if (!IsValidUtf8(text)) {
    const size_t used = AppendReplacingInvalid(text, &repaired);
    if (used < text.size()) repaired += kReplacementCharacter;
    text = repaired;
  }
  *out += '"';
  for (const char c : text) {
    switch (c) {
      case '"': *out += "\\\""; break;
      case '\\': *out += "\\\\"; break;
      case '\n': *out += "\\n"; break;
      case '\r': *out += "\\r"; break;
      case '\t': *out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
          fmt::format_to(std::back_inserter(*out), "\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
        } else {
          *out += c;
        }
    }
  }
  *out += '"';
}

std::string JsonString(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

void AppendJsonNumber(double value, std::string* out) {
  constexpr double kLeast = -9999.0;  // what other servers send for a log-probability of minus infinity
  if (std::isnan(value)) {
    *out += "null";
  } else if (std::isinf(value)) {
    fmt::format_to(std::back_inserter(*out), "{}", value < 0 ? kLeast : -kLeast);
  } else {
    fmt::format_to(std::back_inserter(*out), "{}", static_cast<float>(value));
  }
}

void AppendJsonBytes(std::string_view bytes, std::string* out) {
  *out += '[';
  for (size_t i = 0; i < bytes.size(); ++i) {
    fmt::format_to(std::back_inserter(*out), "{}{}", i == 0 ? "" : ",", static_cast<unsigned>(static_cast<unsigned char>(bytes[i])));
  }
  *out += ']';
}

}  // namespace cachalot
