// Code points and what Python's str methods know about them. UTF-8 here may be damaged: a byte that begins no
// character is a character of its own (0xDC80 … 0xDCFF, as Python's surrogateescape has it) and is written
// back as that byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cachalot::jinja {

// The code point at `pos` (which must be inside) and how many bytes it takes.
uint32_t DecodeUtf8(std::string_view text, size_t pos, size_t* size);
// The start of the character that ends at `pos` > 0.
size_t PreviousUtf8(std::string_view text, size_t pos);
// Writes at most 4 bytes, returns how many.
size_t EncodeUtf8(uint32_t code, char* out);
int64_t CountUtf8(std::string_view text);

bool IsSpace(uint32_t code);
// What str.splitlines takes for the end of a line, \r\n apart.
bool IsLineBreak(uint32_t code);
bool IsAlpha(uint32_t code);
bool IsDecimal(uint32_t code);
bool IsDigit(uint32_t code);
bool IsNumeric(uint32_t code);
bool IsPrintable(uint32_t code);
bool IsLower(uint32_t code);
bool IsUpper(uint32_t code);
bool IsTitle(uint32_t code);
bool IsCased(uint32_t code);
bool IsCaseIgnorable(uint32_t code);
inline bool IsAlnum(uint32_t code) {
  return IsAlpha(code) || IsNumeric(code);
}
// 0 … 9 for a decimal digit of any script, otherwise -1.
int DecimalValue(uint32_t code);

// Full case mappings: write at most 3 code points, return how many.
int ToUpper(uint32_t code, uint32_t out[3]);
int ToLower(uint32_t code, uint32_t out[3]);
int ToTitle(uint32_t code, uint32_t out[3]);
int ToFold(uint32_t code, uint32_t out[3]);

}  // namespace cachalot::jinja
