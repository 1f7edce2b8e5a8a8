// Pieces of JSON text written directly: a token's chunk is a few hundred bytes and is made thousands of times a second.
// Invariant: what comes out is valid JSON in valid UTF-8, whatever bytes go in.
#pragma once

#include <string>
#include <string_view>

namespace cachalot {

// With quotes; bytes that are no UTF-8 become U+FFFD.
void AppendJsonString(std::string_view text, std::string* out);
std::string JsonString(std::string_view text);
// Infinities and NaN, which JSON does not have, become the largest numbers and null.
void AppendJsonNumber(double value, std::string* out);
// [226, 152, …]
void AppendJsonBytes(std::string_view bytes, std::string* out);

}  // namespace cachalot
