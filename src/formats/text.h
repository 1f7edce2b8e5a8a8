// Bytes from a hostile file made fit for a one-line message.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cachalot {

// Control characters and bytes that are not valid UTF-8 as \xNN, cut at max_chars bytes with "…" behind.
std::string Printable(std::string_view bytes, size_t max_chars = 60);

}  // namespace cachalot
