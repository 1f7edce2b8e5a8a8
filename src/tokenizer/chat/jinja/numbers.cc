#include "tokenizer/chat/jinja/numbers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "tokenizer/chat/jinja/unicode.h"

namespace cachalot::jinja {
namespace {

__extension__ typedef unsigned __int128 UInt;

constexpr Int kIntMax = static_cast<Int>(~UInt{0} >> 1);
constexpr Int kIntMin = -kIntMax - 1;

// Trims Unicode whitespace, turns decimal digits of any script into ASCII, removes single underscores between
// digits. Nothing when a character has no place in a number.
std::optional<std::string> CleanNumber(std::string_view text) {
  std::string out;
  size_t begin = 0;
  size_t end = text.size();
  while (begin < end) {
    size_t size;
    if (!IsSpace(DecodeUtf8(text, begin, &size))) break;
    begin += size;
  }
  while (end > begin) {
    const size_t previous = PreviousUtf8(text, end);
    size_t size;
    if (!IsSpace(DecodeUtf8(text, previous, &size))) break;
    end = previous;
  }
  for (size_t pos = begin; pos < end;) {
    size_t size;
    const uint32_t code = DecodeUtf8(text, pos, &size);
    const int digit = DecimalValue(code);
    if (digit >= 0) {
      out += static_cast<char>('0' + digit);
    } else if (code < 0x80) {
      out += static_cast<char>(code);
    } else {
      return std::nullopt;
    }
    pos += size;
  }
  return out;
}

int DigitValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const int lower = c | 0x20;
  if (lower >= 'a' && lower <= 'z') return lower - 'a' + 10;
  return 99;
}

}  // namespace

std::string FormatMagnitude(Int value, int base, bool upper) {
  UInt u = value < 0 ? ~static_cast<UInt>(value) + 1 : static_cast<UInt>(value);
  std::string out;
  do {
    const int digit = static_cast<int>(u % static_cast<unsigned>(base));
    out += static_cast<char>(digit < 10 ? '0' + digit : (upper ? 'A' : 'a') + digit - 10);
    u /= static_cast<unsigned>(base);
  } while (u != 0);
  std::reverse(out.begin(), out.end());
  return out;
}

std::string FormatInt(Int value) {
  std::string digits = FormatMagnitude(value, 10);
  return value < 0 ? std::string(1, '-').append(digits) : digits;
}

std::string FormatFloat(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  std::string out;
  if (text[0] == '-') {
    out += '-';
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out.append(1, '.').append(digits, 1);
    char tail[16];
    std::snprintf(tail, sizeof(tail), "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return out + tail;
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) {
    return out + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  }
  return out + digits.substr(0, static_cast<size_t>(exponent) + 1) + "." +
         digits.substr(static_cast<size_t>(exponent) + 1);
}

std::optional<Int> ParseInt(std::string_view text, int base, NumberError* error) {
  *error = NumberError::kSyntax;
  const std::optional<std::string> clean = CleanNumber(text);
  if (!clean) return std::nullopt;
  std::string_view s = *clean;
  bool negative = false;
  if (!s.empty() && (s[0] == '+' || s[0] == '-')) {
    negative = s[0] == '-';
    s.remove_prefix(1);
  }
  bool prefixed = false;
  if (s.size() >= 2 && s[0] == '0') {
    const char p = static_cast<char>(s[1] | 0x20);
    const int prefix_base = p == 'x' ? 16 : p == 'o' ? 8 : p == 'b' ? 2 : 0;
    if (prefix_base != 0 && (base == 0 || base == prefix_base)) {
      base = prefix_base;
      s.remove_prefix(2);
      prefixed = true;
      if (!s.empty() && s[0] == '_') s.remove_prefix(1);
    }
  }
  const bool no_leading_zero = base == 0;  // int("007", 0) is an error, int("00", 0) is not
  if (base == 0) base = 10;
  if (s.empty()) return std::nullopt;
  UInt value = 0;
  bool too_large = false;
  bool nonzero = false;
  bool last_underscore = true;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] == '_') {
      if (last_underscore) return std::nullopt;
      last_underscore = true;
      continue;
    }
    last_underscore = false;
    const int digit = DigitValue(s[i]);
    if (digit >= base) return std::nullopt;
    nonzero = nonzero || digit != 0;
    if (value > (static_cast<UInt>(kIntMax) - static_cast<unsigned>(digit)) / static_cast<unsigned>(base)) {
      too_large = true;
    } else {
      value = value * static_cast<unsigned>(base) + static_cast<unsigned>(digit);
    }
  }
  if (last_underscore) return std::nullopt;
  if (no_leading_zero && !prefixed && s[0] == '0' && nonzero) return std::nullopt;
  if (too_large) {
    *error = NumberError::kTooLarge;
    return std::nullopt;
  }
  const Int result = static_cast<Int>(value);
  return negative ? -result : result;
}

std::optional<double> ParseFloat(std::string_view text) {
  const std::optional<std::string> clean = CleanNumber(text);
  if (!clean) return std::nullopt;
  std::string s;
  for (size_t i = 0; i < clean->size(); ++i) {
    const char c = (*clean)[i];
    if (c != '_') {
      s += c;
      continue;
    }
    const auto digit = [&](size_t at) {
      return at < clean->size() && (*clean)[at] >= '0' && (*clean)[at] <= '9';
    };
    if (i == 0 || !digit(i - 1) || !digit(i + 1)) return std::nullopt;
  }
  std::string_view body = s;
  bool negative = false;
  if (!body.empty() && (body[0] == '+' || body[0] == '-')) {
    negative = body[0] == '-';
    body.remove_prefix(1);
  }
  std::string lower(body);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? c | 0x20 : c; });
  double value = 0;
  if (lower == "inf" || lower == "infinity") {
    value = HUGE_VAL;
  } else if (lower == "nan") {
    value = std::nan("");
  } else {
    if (lower.empty() || !((lower[0] >= '0' && lower[0] <= '9') || lower[0] == '.')) return std::nullopt;
    const auto [end, code] = std::from_chars(lower.data(), lower.data() + lower.size(), value);
    if (end != lower.data() + lower.size()) return std::nullopt;
    if (code == std::errc::result_out_of_range) {
      value = std::strtod(lower.c_str(), nullptr);
    } else if (code != std::errc()) {
      return std::nullopt;
    }
  }
  return negative ? -value : value;
}

std::optional<Int> TruncateToInt(double value) {
  constexpr double kLimit = 85070591730234615865843651857942052864.0;  // 2^126
  if (!(value > -kLimit && value < kLimit)) return std::nullopt;
  return static_cast<Int>(value);
}

double RoundFloat(double value, int digits) {
  if (!std::isfinite(value) || digits > 323) return value;
  if (digits < -308) return std::copysign(0.0, value);
  if (digits < 0) {
    const double scale = std::pow(10.0, -digits);
    double scaled = value / scale;
    const double rounded = std::nearbyint(scaled);
    return rounded * scale;
  }
  // printf rounds the exact binary value, ties to even.
  char buffer[700];
  std::snprintf(buffer, sizeof(buffer), "%.*f", digits, value);
  return std::strtod(buffer, nullptr);
}

Status IntOverflow() {
  return Unsupported("an integer needs more than 127 bits");
}

Result<Int> AddInt(Int a, Int b) {
  Int out;
  if (__builtin_add_overflow(a, b, &out)) return IntOverflow();
  return out;
}
Result<Int> SubInt(Int a, Int b) {
  Int out;
  if (__builtin_sub_overflow(a, b, &out)) return IntOverflow();
  return out;
}
Result<Int> MulInt(Int a, Int b) {
  Int out;
  if (__builtin_mul_overflow(a, b, &out)) return IntOverflow();
  return out;
}

Int FloorDivInt(Int a, Int b) {
  if (b == -1) return a == kIntMin ? kIntMax : -a;
  const Int q = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}
Int FloorModInt(Int a, Int b) {
  if (b == -1) return 0;
  const Int m = a % b;
  return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}
double FloorModFloat(double a, double b) {
  double m = std::fmod(a, b);
  if (m != 0) {
    if ((b < 0) != (m < 0)) m += b;
  } else {
    m = std::copysign(0.0, b);
  }
  return m;
}

Result<Int> PowInt(Int base, Int exponent) {
  Int result = 1;
  while (exponent > 0) {
    if (exponent & 1) {
      ASSIGN_OR_RETURN(result, MulInt(result, base));
    }
    exponent >>= 1;
    if (exponent == 0) break;
    if (base == 0 || base == 1) return result * base;
    if (base == -1) {
      base = 1;
      continue;
    }
    ASSIGN_OR_RETURN(base, MulInt(base, base));
  }
  return result;
}

}  // namespace cachalot::jinja
