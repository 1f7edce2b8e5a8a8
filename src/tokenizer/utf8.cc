#include "tokenizer/utf8.h"

#include <cstring>

namespace cachalot {

Utf8Char NextUtf8Char(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, false};
  if (lead < 0xC2 || lead > 0xF4) return {kInvalidCodePoint, 1, false};
  const int size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte is the one whose range excludes overlong forms, surrogates and values above 10FFFF.
  const uint8_t second_min = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t second_max = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  int32_t code_point = lead & (0xFF >> (size + 1));
  for (int i = 1; i < size; ++i) {
    if (static_cast<size_t>(i) >= text.size()) return {kInvalidCodePoint, i, true};
    const uint8_t c = byte(static_cast<size_t>(i));
    if (c < (i == 1 ? second_min : 0x80) || c > (i == 1 ? second_max : 0xBF))
      return {kInvalidCodePoint, i, false};
    code_point = code_point << 6 | (c & 0x3F);
  }
  return {code_point, size, false};
}

namespace {

// Bytes at the beginning that are ASCII, eight at a time.
size_t AsciiPrefix(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080ull) != 0) break;
  }
  while (i < text.size() && static_cast<uint8_t>(text[i]) < 0x80) ++i;
  return i;
}

}  // namespace

bool IsValidUtf8(std::string_view text) {
  while (true) {
    text.remove_prefix(AsciiPrefix(text));
    if (text.empty()) return true;
    const Utf8Char c = NextUtf8Char(text);
    if (c.code_point == kInvalidCodePoint) return false;
    text.remove_prefix(static_cast<size_t>(c.size));
  }
}

size_t AppendReplacingInvalid(std::string_view bytes, std::string* out) {
  size_t pos = 0;
  while (pos < bytes.size()) {
    const size_t ascii = AsciiPrefix(bytes.substr(pos));
    out->append(bytes, pos, ascii);
    pos += ascii;
    if (pos == bytes.size()) break;
    const Utf8Char c = NextUtf8Char(bytes.substr(pos));
    if (c.truncated) return pos;
    if (c.code_point == kInvalidCodePoint) {
      out->append(kReplacementCharacter);
    } else {
      out->append(bytes, pos, static_cast<size_t>(c.size));
    }
    pos += static_cast<size_t>(c.size);
  }
  return pos;
}

void AppendUtf8(int32_t code_point, std::string* out) {
  const auto c = static_cast<uint32_t>(code_point);
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | c >> 6));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | c >> 12));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | c >> 18));
    out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

bool IsWhiteSpace(int32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace cachalot
