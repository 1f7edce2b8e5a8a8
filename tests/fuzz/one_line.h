// What every error message must be, whatever bytes it quotes: short, on one line, and with the place in
// front.
#pragma once

#include <string_view>

#include "base/check.h"
#include "base/status.h"

namespace cachalot::fuzz {

inline void CheckOneLine(std::string_view text) {
  for (const char c : text) CHECK(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) << text;
}

inline void CheckOneLine(const Status& status, std::string_view place) {
  CheckOneLine(status.message());
  CHECK(status.message().starts_with(place)) << status.ToString();
  CHECK(status.message().size() < 1000) << status.ToString();
}

}  // namespace cachalot::fuzz
