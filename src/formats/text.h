// Pieces of error messages: bytes from a hostile file made fit for one line, and ranges in words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cachalot {

// Control characters and bytes that are not valid UTF-8 as \xNN, cut at max_chars bytes with "…" behind.
std::string Printable(std::string_view bytes, size_t max_chars = 60);

bool IsUtf8(std::string_view bytes);

// "an integer in 1..64", "an integer of at least 1", "an integer"; the extremes of the type count as no
// bound.
std::string IntRange(int64_t min, int64_t max);
// The same for numbers, which are always finite.
std::string FloatRange(double min, double max);

}  // namespace cachalot
