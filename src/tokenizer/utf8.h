// UTF-8 for text that may not be valid: one character at a time, and conversion with U+FFFD for what is
// invalid. Invariant: an invalid stretch is a maximal subpart of a character (as Python's errors="replace"
// counts it), so that every reader here agrees on how many replacement characters a sequence of bytes gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cachalot {

inline constexpr int32_t kInvalidCodePoint = -1;
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

struct Utf8Char {
  int32_t code_point = kInvalidCodePoint;
  int size = 0;            // bytes, at least 1
  bool truncated = false;  // invalid only because the text ends here: more bytes could complete it
};

// The character at the beginning of text, which must not be empty.
Utf8Char NextUtf8Char(std::string_view text);

bool IsValidUtf8(std::string_view text);

// Appends bytes to out as valid UTF-8 and returns how many bytes were used: all, or all but an incomplete
// character at the end (at most 3 bytes).
size_t AppendReplacingInvalid(std::string_view bytes, std::string* out);

void AppendUtf8(int32_t code_point, std::string* out);

// The property White_Space: what \s means to the tokenizers of Hugging Face.
bool IsWhiteSpace(int32_t code_point);

}  // namespace cachalot
