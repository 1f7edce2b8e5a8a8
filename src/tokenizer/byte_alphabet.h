// The alphabet in which byte-level vocabularies are written: every byte is one printable character. The
// printable bytes of Latin-1 stand for themselves, the other 68 are U+0100 … U+0143 in ascending order (a
// space is "Ġ", a newline "Ċ").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cachalot {

// The character of a byte, in UTF-8.
std::string_view ByteToAlphabet(uint8_t byte);
// -1: no character of the alphabet.
int AlphabetToByte(int32_t code_point);

// Appends the bytes that the text stands for. False, and nothing appended, when a character is not of the
// alphabet.
bool AppendAlphabetBytes(std::string_view text, std::string* out);

}  // namespace cachalot
