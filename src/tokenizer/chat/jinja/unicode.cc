#include "tokenizer/chat/jinja/unicode.h"

#include <algorithm>

#include "tokenizer/chat/jinja/unicode_tables.h"

namespace cachalot::jinja {
namespace {

bool InRanges(const CodeRange* ranges, int count, uint32_t code) {
  const CodeRange* end = ranges + count;
  const CodeRange* it = std::partition_point(ranges, end, [&](const CodeRange& r) { return r.last < code; });
  return it != end && it->first <= code;
}

// True and the mapped code point when a run covers `code`.
bool InRuns(const CaseRun* runs, int count, uint32_t code, uint32_t* out) {
  const CaseRun* end = runs + count;
  // Runs of stride 2 interleave, but never more than two at a time.
  const CaseRun* it = std::partition_point(runs, end, [&](const CaseRun& r) { return r.first <= code; });
  for (int back = 0; back < 3 && it != runs; ++back) {
    --it;
    if (code <= it->last && (code - it->first) % static_cast<uint32_t>(it->stride) == 0) {
      *out = static_cast<uint32_t>(static_cast<int32_t>(code) + it->delta);
      return true;
    }
  }
  return false;
}

// How many code points were written, 0 when the tables say nothing about `code`.
int Map(const CaseRun* runs, int num_runs, const CaseSpecial* specials, int num_specials, uint32_t code,
        uint32_t out[3]) {
  const CaseSpecial* end = specials + num_specials;
  const CaseSpecial* it =
      std::partition_point(specials, end, [&](const CaseSpecial& s) { return s.code < code; });
  if (it != end && it->code == code) {
    int n = 0;
    while (n < 3 && it->to[n] != 0) {
      out[n] = it->to[n];
      ++n;
    }
    return n;
  }
  return InRuns(runs, num_runs, code, out) ? 1 : 0;
}

}  // namespace

uint32_t DecodeUtf8(std::string_view text, size_t pos, size_t* size) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const auto continuation = [&](size_t i) { return i < text.size() && (byte(i) & 0xC0) == 0x80; };
  const uint8_t b = byte(pos);
  *size = 1;
  if (b < 0x80) return b;
  if (b >= 0xC2 && b < 0xE0 && continuation(pos + 1)) {
    *size = 2;
    return (b & 0x1Fu) << 6 | (byte(pos + 1) & 0x3Fu);
  }
  if (b >= 0xE0 && b < 0xF0 && continuation(pos + 1) && continuation(pos + 2)) {
    const uint32_t code = (b & 0x0Fu) << 12 | (byte(pos + 1) & 0x3Fu) << 6 | (byte(pos + 2) & 0x3Fu);
    if (code >= 0x800 && (code < 0xD800 || code > 0xDFFF)) {
      *size = 3;
      return code;
    }
  }
  if (b >= 0xF0 && b < 0xF5 && continuation(pos + 1) && continuation(pos + 2) && continuation(pos + 3)) {
    const uint32_t code = (b & 0x07u) << 18 | (byte(pos + 1) & 0x3Fu) << 12 | (byte(pos + 2) & 0x3Fu) << 6 |
                          (byte(pos + 3) & 0x3Fu);
    if (code >= 0x10000 && code <= 0x10FFFF) {
      *size = 4;
      return code;
    }
  }
  return 0xDC00u + b;
}

size_t PreviousUtf8(std::string_view text, size_t pos) {
  if (static_cast<uint8_t>(text[pos - 1]) < 0x80) return pos - 1;
  for (size_t back = 2; back <= 4 && back <= pos; ++back) {
    size_t size;
    DecodeUtf8(text, pos - back, &size);
    if (size == back) return pos - back;
  }
  return pos - 1;
}

size_t EncodeUtf8(uint32_t code, char* out) {
  if (code < 0x80) {
    out[0] = static_cast<char>(code);
    return 1;
  }
  if (code >= 0xDC80 && code <= 0xDCFF) {
    out[0] = static_cast<char>(code - 0xDC00);
    return 1;
  }
  if (code < 0x800) {
    out[0] = static_cast<char>(0xC0 | code >> 6);
    out[1] = static_cast<char>(0x80 | (code & 0x3F));
    return 2;
  }
  if (code < 0x10000) {
    out[0] = static_cast<char>(0xE0 | code >> 12);
    out[1] = static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out[2] = static_cast<char>(0x80 | (code & 0x3F));
    return 3;
  }
  out[0] = static_cast<char>(0xF0 | code >> 18);
  out[1] = static_cast<char>(0x80 | (code >> 12 & 0x3F));
  out[2] = static_cast<char>(0x80 | (code >> 6 & 0x3F));
  out[3] = static_cast<char>(0x80 | (code & 0x3F));
  return 4;
}

int64_t CountUtf8(std::string_view text) {
  int64_t count = 0;
  for (size_t pos = 0; pos < text.size(); ++count) {
    size_t size;
    DecodeUtf8(text, pos, &size);
    pos += size;
  }
  return count;
}

bool IsSpace(uint32_t c) {
  if (c < 0x80) return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsLineBreak(uint32_t c) {
  return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool IsAlpha(uint32_t c) {
  if (c < 0x80) return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
  return InRanges(kAlpha, kNumAlpha, c);
}
bool IsDecimal(uint32_t c) {
  return InRanges(kDecimal, kNumDecimal, c);
}
bool IsDigit(uint32_t c) {
  return IsDecimal(c) || InRanges(kDigit, kNumDigit, c);
}
bool IsNumeric(uint32_t c) {
  return IsDigit(c) || InRanges(kNumeric, kNumNumeric, c);
}
bool IsPrintable(uint32_t c) {
  if (c < 0x7F) return c >= 0x20;
  return (c < 0xD800 || c > 0xDFFF) && !InRanges(kNotPrintable, kNumNotPrintable, c);
}
bool IsLower(uint32_t c) {
  return InRanges(kLowercase, kNumLowercase, c);
}
bool IsUpper(uint32_t c) {
  return InRanges(kUppercase, kNumUppercase, c);
}
bool IsTitle(uint32_t c) {
  // The category Lt: 31 code points.
  return c == 0x1C5 || c == 0x1C8 || c == 0x1CB || c == 0x1F2 || (c >= 0x1F88 && c <= 0x1F8F) ||
         (c >= 0x1F98 && c <= 0x1F9F) || (c >= 0x1FA8 && c <= 0x1FAF) || c == 0x1FBC || c == 0x1FCC ||
         c == 0x1FFC;
}
bool IsCased(uint32_t c) {
  return IsLower(c) || IsUpper(c) || IsTitle(c);
}
bool IsCaseIgnorable(uint32_t c) {
  return InRanges(kCaseIgnorable, kNumCaseIgnorable, c);
}

int DecimalValue(uint32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9' ? static_cast<int>(c - '0') : -1;
  const CodeRange* end = kDecimal + kNumDecimal;
  const CodeRange* it = std::partition_point(kDecimal, end, [&](const CodeRange& r) { return r.last < c; });
  // Decimal digits come in tens that start at zero.
  return it != end && it->first <= c ? static_cast<int>((c - it->first) % 10) : -1;
}

int ToUpper(uint32_t c, uint32_t out[3]) {
  const int n = Map(kUpperRuns, kNumUpperRuns, kUpperSpecials, kNumUpperSpecials, c, out);
  if (n > 0) return n;
  out[0] = c;
  return 1;
}
int ToLower(uint32_t c, uint32_t out[3]) {
  const int n = Map(kLowerRuns, kNumLowerRuns, kLowerSpecials, kNumLowerSpecials, c, out);
  if (n > 0) return n;
  out[0] = c;
  return 1;
}
int ToTitle(uint32_t c, uint32_t out[3]) {
  const int n = Map(kTitleRuns, kNumTitleRuns, kTitleSpecials, kNumTitleSpecials, c, out);
  return n > 0 ? n : ToUpper(c, out);
}
int ToFold(uint32_t c, uint32_t out[3]) {
  const int n = Map(kFoldRuns, kNumFoldRuns, kFoldSpecials, kNumFoldSpecials, c, out);
  return n > 0 ? n : ToLower(c, out);
}

}  // namespace cachalot::jinja
