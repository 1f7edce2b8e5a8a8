// Numbers as Python writes and reads them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_value.h"

namespace cachalot::jinja {

std::string FormatInt(Int value);
// In base 2, 8, 10 or 16, without sign or prefix.
std::string FormatMagnitude(Int value, int base, bool upper = false);
// repr(float): the shortest text that reads back, 1e+16, nan, inf.
std::string FormatFloat(double value);

enum class NumberError { kSyntax, kTooLarge };
// int(text, base); base 0 or 2 … 36. Whitespace around, underscores inside and digits of other scripts are
// allowed.
std::optional<Int> ParseInt(std::string_view text, int base, NumberError* error);
// float(text).
std::optional<double> ParseFloat(std::string_view text);
// int(value); nothing for nan, infinity and what has more than 126 bits.
std::optional<Int> TruncateToInt(double value);
// round(value, digits) with ties to even on the exact binary value.
double RoundFloat(double value, int digits);

Result<Int> AddInt(Int a, Int b);
Result<Int> SubInt(Int a, Int b);
Result<Int> MulInt(Int a, Int b);
// Python's // and %: rounding towards minus infinity, the remainder having the divisor's sign; b is not 0.
Int FloorDivInt(Int a, Int b);
Int FloorModInt(Int a, Int b);
double FloorModFloat(double a, double b);
Result<Int> PowInt(Int base, Int exponent);
Status IntOverflow();

}  // namespace cachalot::jinja
