#include "formats/text.h"

#include <fmt/format.h>

#include <limits>

namespace cachalot {
namespace {

// Bytes of the UTF-8 character at the start of `text`; 0 when there is no valid one (overlong, surrogate, cut
// off).
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f)) return 0;
  if ((lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f)) return 0;
  return length;
}

}  // namespace

std::string Printable(std::string_view bytes, size_t max_chars) {
  std::string out;
  while (!bytes.empty()) {
    if (out.size() >= max_chars) return out + "…";
    const auto lead = static_cast<unsigned char>(bytes[0]);
    size_t length = Utf8Length(bytes);
    const bool control =
        lead < 0x20 || lead == 0x7f || (lead == 0xc2 && length == 2 && (bytes[1] & 0xe0) == 0x80);
    if (length == 0 || control) {
      length = 1;
      out += fmt::format("\\x{:02x}", lead);
    } else {
      out += bytes.substr(0, length);
    }
    bytes.remove_prefix(length);
  }
  return out;
}

bool IsUtf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t length = Utf8Length(bytes);
    if (length == 0) return false;
    bytes.remove_prefix(length);
  }
  return true;
}

std::string IntRange(int64_t min, int64_t max) {
  if (min == INT64_MIN && max == INT64_MAX) return "an integer";
  if (max == INT64_MAX) return fmt::format("an integer of at least {}", min);
  return fmt::format("an integer in {}..{}", min, max);
}

std::string FloatRange(double min, double max) {
  if (min == std::numeric_limits<double>::lowest() && max == std::numeric_limits<double>::max()) {
    return "a finite number";
  }
  if (max == std::numeric_limits<double>::max()) return fmt::format("a number of at least {}", min);
  return fmt::format("a number in {}..{}", min, max);
}

}  // namespace cachalot
