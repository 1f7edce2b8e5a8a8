// Numbers and strings of jinja_lexer.h.
#include <algorithm>

#include "tokenizer/chat/jinja/jinja_lexer.h"
#include "tokenizer/chat/jinja/numbers.h"
#include "tokenizer/chat/jinja/unicode.h"

namespace cachalot::jinja {
namespace {

bool IsDigitAt(std::string_view s, size_t pos) {
  return pos < s.size() && s[pos] >= '0' && s[pos] <= '9';
}

// End of digits with single underscores between them, npos when there is no digit at `pos`.
template <typename IsDigitFn>
size_t DigitsEnd(std::string_view s, size_t pos, IsDigitFn digit) {
  if (pos >= s.size() || !digit(s[pos])) return std::string_view::npos;
  while (pos < s.size()) {
    if (digit(s[pos]))
      ++pos;
    else if (s[pos] == '_' && pos + 1 < s.size() && digit(s[pos + 1]))
      pos += 2;
    else
      break;
  }
  return pos;
}

bool IsDecimalChar(char c) {
  return c >= '0' && c <= '9';
}

// The end of a float at `pos`: digits, then a fraction or an exponent or both; npos when it is none.
size_t FloatEnd(std::string_view s, size_t pos) {
  const size_t whole = DigitsEnd(s, pos, IsDecimalChar);
  if (whole == s.npos) return s.npos;
  size_t end = whole;
  if (end < s.size() && s[end] == '.') {
    const size_t fraction = DigitsEnd(s, end + 1, IsDecimalChar);
    if (fraction == s.npos) return s.npos;
    end = fraction;
  }
  if (end < s.size() && (s[end] | 0x20) == 'e') {
    size_t exponent = end + 1;
    if (exponent < s.size() && (s[exponent] == '+' || s[exponent] == '-')) ++exponent;
    const size_t exponent_end = DigitsEnd(s, exponent, IsDecimalChar);
    if (exponent_end != s.npos) return exponent_end;
  }
  return end > whole ? end : s.npos;
}

size_t IntegerEnd(std::string_view s, size_t pos) {
  if (!IsDigitAt(s, pos)) return s.npos;
  if (s[pos] == '0' && pos + 1 < s.size()) {
    const char p = static_cast<char>(s[pos + 1] | 0x20);
    const auto in_base = [p](char c) {
      if (p == 'b') return c == '0' || c == '1';
      if (p == 'o') return c >= '0' && c <= '7';
      return IsDecimalChar(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
    };
    if (p == 'b' || p == 'o' || p == 'x') {
      const size_t first = pos + 2 < s.size() && s[pos + 2] == '_' ? pos + 3 : pos + 2;
      const size_t end = DigitsEnd(s, first, in_base);
      if (end != s.npos) return end;
    }
  }
  if (s[pos] == '0') return DigitsEnd(s, pos, [](char c) { return c == '0'; });
  return DigitsEnd(s, pos, IsDecimalChar);
}

}  // namespace

Status Lexer::ReadNumber() {
  const bool after_dot = pos_ > 0 && source_[pos_ - 1] == '.';
  const size_t float_end = after_dot ? source_.npos : FloatEnd(source_, pos_);
  const bool is_float = float_end != source_.npos;
  const size_t end = is_float ? float_end : IntegerEnd(source_, pos_);
  std::string digits = source_.substr(pos_, end - pos_);
  digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
  if (is_float) {
    Emit(TokenType::kFloat, "");
    ready_.back().number = ParseFloat(digits).value_or(0);
  } else {
    NumberError error;
    const std::optional<Int> value = ParseInt(digits, 0, &error);
    if (!value) return Fail("the integer " + digits.substr(0, 60) + " is too large");
    Emit(TokenType::kInteger, "");
    ready_.back().integer = *value;
  }
  Advance(end);
  return Status::Ok();
}

Status Lexer::ReadString() {
  const char quote = source_[pos_];
  const int line = line_;
  std::string out;
  size_t at = pos_ + 1;
  for (;; ++at) {
    if (at >= source_.size()) return Fail(fmt::format("unexpected char {} (a string without an end)", quote));
    const char c = source_[at];
    if (c == quote) break;
    if (c != '\\') {
      out += c;
      continue;
    }
    if (++at >= source_.size()) return Fail("a string without an end");
    const char e = source_[at];
    static constexpr std::string_view kFrom = "\\'\"abfnrtv";
    static constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
    const size_t simple = kFrom.find(e);
    if (simple != std::string_view::npos) {
      out += kTo[simple];
    } else if (e == '\n') {
      // A line that goes on.
    } else if (e >= '0' && e <= '7') {
      uint32_t code = 0;
      size_t n = 0;
      for (; n < 3 && at + n < source_.size() && source_[at + n] >= '0' && source_[at + n] <= '7'; ++n) {
        code = code * 8 + static_cast<uint32_t>(source_[at + n] - '0');
      }
      at += n - 1;
      char bytes[4];
      out.append(bytes, EncodeUtf8(code, bytes));
    } else if (e == 'x' || e == 'u' || e == 'U') {
      const size_t count = e == 'x' ? 2 : e == 'u' ? 4 : 8;
      uint32_t code = 0;
      for (size_t n = 1; n <= count; ++n) {
        const char h = at + n < source_.size() ? source_[at + n] : ' ';
        const int lower = h | 0x20;
        const int digit = IsDecimalChar(h) ? h - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
        if (digit < 0 || code > 0x0FFFFFFF) return Fail(fmt::format("truncated \\{} escape", e));
        code = code * 16 + static_cast<uint32_t>(digit);
      }
      at += count;
      if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
        return Fail("a string escape is no character");
      char bytes[4];
      out.append(bytes, EncodeUtf8(code, bytes));
    } else if (e == 'N') {
      return Fail("\\N escapes are not supported");
    } else {
      out += '\\';
      out += e;
    }
  }
  Emit(TokenType::kString, std::move(out));
  ready_.back().line = line;
  Advance(at + 1);
  return Status::Ok();
}

}  // namespace cachalot::jinja
