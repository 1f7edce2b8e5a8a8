// Tokens <0xNN>, which stand for one byte where a vocabulary falls back to bytes.
#pragma once

#include <string_view>

namespace cachalot {

// The byte (capital digits, as files have them), -1 for any other text.
inline int ByteOfToken(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || !text.ends_with(">")) return -1;
  const auto hex = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  return hex(text[3]) < 0 || hex(text[4]) < 0 ? -1 : hex(text[3]) * 16 + hex(text[4]);
}

}  // namespace cachalot
