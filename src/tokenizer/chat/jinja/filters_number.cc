// Filters on numbers.
#include <algorithm>
#include <cmath>

#include "tokenizer/chat/jinja/arithmetic.h"
#include "tokenizer/chat/jinja/filters.h"
#include "tokenizer/chat/jinja/jinja_args.h"
#include "tokenizer/chat/jinja/jinja_strings.h"
#include "tokenizer/chat/jinja/numbers.h"

namespace cachalot::jinja {
namespace {

bool TextUser(const Value& v) {
  return v.is_string() ? HasUser(v.s) : v.from_user;
}

Result<Value> Abs(Runtime&, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("abs", args));
  if (input.is(Kind::kFloat)) return Value::Float(std::fabs(input.f)).WithUser(input.from_user);
  if (!input.is_int_like()) return TypeError("bad operand type for abs(): '{}'", TypeName(input));
  return input.as_int() < 0 ? Negate(input) : Value::Integer(input.as_int()).WithUser(input.from_user);
}

Result<Value> ToInt(Runtime&, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("int", {"default", "base"}, 0, args));
  const Value otherwise = Given(a[0]) ? a[0] : Value::Integer(0);
  const bool user = TextUser(input);
  if (input.is_undefined()) return UndefinedError(input);
  if (input.is_int_like()) return Value::Integer(input.as_int()).WithUser(user);
  if (input.is(Kind::kFloat)) {
    if (std::isnan(input.f)) return otherwise;
    const std::optional<Int> whole = TruncateToInt(input.f);
    if (!whole)
      return std::isinf(input.f) ? InvalidArgument("cannot convert float infinity to integer")
                                 : IntOverflow();
    return Value::Integer(*whole).WithUser(user);
  }
  if (!input.is_string()) return otherwise;
  Int base = 10;
  if (Given(a[1])) {
    ASSIGN_OR_RETURN(base, IntArg("int", a[1]));
  }
  if (base == 0 || (base >= 2 && base <= 36)) {
    NumberError error;
    const std::optional<Int> value = ParseInt(input.s->view(), static_cast<int>(base), &error);
    if (value) return Value::Integer(*value).WithUser(user);
    if (error == NumberError::kTooLarge) return IntOverflow();
  }
  const std::optional<double> number = ParseFloat(input.s->view());
  if (!number || !std::isfinite(*number)) return otherwise;
  const std::optional<Int> whole = TruncateToInt(*number);
  if (!whole) return IntOverflow();
  return Value::Integer(*whole).WithUser(user);
}

Result<Value> ToFloat(Runtime&, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("float", {"default"}, 0, args));
  const Value otherwise = Given(a[0]) ? a[0] : Value::Float(0);
  if (input.is_undefined()) return UndefinedError(input);
  if (input.is_number()) return Value::Float(input.as_double()).WithUser(input.from_user);
  if (!input.is_string()) return otherwise;
  const std::optional<double> number = ParseFloat(input.s->view());
  return number ? Value::Float(*number).WithUser(TextUser(input)) : otherwise;
}

// round(int, -n): to a power of ten, ties to even.
Result<Int> RoundInt(Int value, int64_t digits) {
  if (digits >= 0) return value;
  if (digits < -38) return Int{0};
  ASSIGN_OR_RETURN(const Int unit, PowInt(10, -digits));
  const Int rest = FloorModInt(value, unit);
  const Int down = value - rest;
  const Int twice = rest > unit - rest ? 1 : rest < unit - rest ? -1 : 0;
  const bool up = twice > 0 || (twice == 0 && FloorModInt(FloorDivInt(value, unit), 2) == 1);
  return up ? AddInt(down, unit) : Result<Int>(down);
}

Result<Value> Round(Runtime&, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("round", {"precision", "method"}, 0, args));
  std::string_view method = "common";
  if (Given(a[1])) method = a[1].is_string() ? a[1].s->view() : std::string_view();
  if (method != "common" && method != "ceil" && method != "floor") {
    return InvalidArgument("method must be common, ceil or floor");
  }
  if (!input.is_number()) return TypeError("type {} doesn't define __round__ method", TypeName(input));
  const bool user = input.from_user;
  if (method == "common") {
    if (a[0].is_none()) {  // to an integer
      if (input.is_int_like()) return Value::Integer(input.as_int()).WithUser(user);
      const std::optional<Int> whole = TruncateToInt(std::nearbyint(input.f));
      if (!whole) return IntOverflow();
      return Value::Integer(*whole).WithUser(user);
    }
    int64_t digits = 0;
    if (Given(a[0])) {
      ASSIGN_OR_RETURN(digits, IndexArg("round", a[0]));
    }
    if (input.is_int_like()) {
      ASSIGN_OR_RETURN(const Int rounded, RoundInt(input.as_int(), digits));
      return Value::Integer(rounded).WithUser(user);
    }
    const int clamped = static_cast<int>(std::clamp<int64_t>(digits, -400, 400));
    return Value::Float(RoundFloat(input.f, clamped)).WithUser(user);
  }
  Value precision = Given(a[0]) ? a[0] : Value::Integer(0);
  if (!precision.is_number()) return TypeError("round: '{}' is no precision", TypeName(precision));
  double scale = std::pow(10.0, precision.as_double());
  const double scaled = input.as_double() * scale;
  if (!std::isfinite(scaled))
    return InvalidArgument("cannot convert float {} to integer", FormatFloat(scaled));
  const double whole = method == "ceil" ? std::ceil(scaled) : std::floor(scaled);
  if (scale == 0) return InvalidArgument("float division by zero");
  return Value::Float((whole == 0 ? 0.0 : whole) / scale).WithUser(user);
}

Result<Value> FileSizeFormat(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("filesizeformat", {"binary"}, 0, args));
  double bytes = 0;
  if (input.is_undefined()) return UndefinedError(input);
  if (input.is_number()) {
    bytes = input.as_double();
  } else if (input.is_string() && ParseFloat(input.s->view())) {
    bytes = *ParseFloat(input.s->view());
  } else {
    return InvalidArgument("could not convert {} to a size", TypeName(input));
  }
  const bool binary = Truth(a[0]);
  const double base = binary ? 1024 : 1000;
  std::string text;
  if (bytes == 1) {
    text = "1 Byte";
  } else if (bytes < base) {
    const std::optional<Int> whole = TruncateToInt(bytes);
    if (!whole) return InvalidArgument("cannot convert float {} to integer", FormatFloat(bytes));
    text = FormatInt(*whole) + " Bytes";
  } else {
    static constexpr const char* kPrefixes[] = {"k", "M", "G", "T", "P", "E", "Z", "Y"};
    double unit = base;
    size_t i = 0;
    for (;; ++i) {
      unit *= base;
      if (bytes < unit || i == 7) break;
    }
    const std::string prefix = binary ? (i == 0 ? "Ki" : std::string(kPrefixes[i]) + "i") : kPrefixes[i];
    text = fmt::format("{:.1f} {}B", base * bytes / unit, prefix);
  }
  ASSIGN_OR_RETURN(const String* s, CopyText(rt, text, TextUser(input)));
  return Value::Str(s);
}

constexpr FilterEntry kFilters[] = {
    {"abs", Abs}, {"filesizeformat", FileSizeFormat}, {"float", ToFloat}, {"int", ToInt}, {"round", Round},
};

}  // namespace

std::span<const FilterEntry> NumberFilters() {
  return kFilters;
}

}  // namespace cachalot::jinja
