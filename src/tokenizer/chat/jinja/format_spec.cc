// format(value, spec): Python's little language of widths, signs and types.
#include <algorithm>
#include <cmath>

#include "tokenizer/chat/jinja/jinja_compare.h"
#include "tokenizer/chat/jinja/numbers.h"
#include "tokenizer/chat/jinja/text_of.h"
#include "tokenizer/chat/jinja/text_ops.h"
#include "tokenizer/chat/jinja/unicode.h"

namespace cachalot::jinja {
namespace {

constexpr int64_t kMaxField = 1 << 24;

struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ =
  char sign = '-';
  bool alternate = false;
  int64_t width = 0;
  char grouping = 0;  // , or _
  int64_t precision = -1;
  char type = 0;
};

Status ReadNumber(std::string_view text, size_t* pos, int64_t* out) {
  *out = 0;
  while (*pos < text.size() && text[*pos] >= '0' && text[*pos] <= '9') {
    *out = *out * 10 + (text[(*pos)++] - '0');
    if (*out > kMaxField) return Exhausted("a format's width or precision is too large");
  }
  return Status::Ok();
}

bool IsAlign(char c) {
  return c == '<' || c == '>' || c == '^' || c == '=';
}

Result<Spec> ParseSpec(std::string_view text, bool is_string) {
  Spec spec;
  size_t pos = 0;
  const auto at = [&](size_t i) { return i < text.size() ? text[i] : '\0'; };
  bool fill_given = false;
  size_t fill_size = 1;
  if (!text.empty()) DecodeUtf8(text, 0, &fill_size);
  if (IsAlign(at(fill_size))) {
    spec.fill = std::string(text.substr(0, fill_size));
    fill_given = true;
    spec.align = at(fill_size);
    pos = fill_size + 1;
  } else if (IsAlign(at(0))) {
    spec.align = at(0);
    pos = 1;
  }
  if (at(pos) == '+' || at(pos) == '-' || at(pos) == ' ') {
    spec.sign = text[pos++];
    if (is_string) return InvalidArgument("sign not allowed in string format specifier");
  }
  if (at(pos) == '#') {
    spec.alternate = true;
    ++pos;
    if (is_string) return InvalidArgument("alternate form (#) not allowed in string format specifier");
  }
  if (at(pos) == '0' && !fill_given) {
    spec.fill.assign(1, '0');
    if (spec.align == 0 && !is_string) spec.align = '=';
    ++pos;
  }
  RETURN_IF_ERROR(ReadNumber(text, &pos, &spec.width));
  if (at(pos) == ',' || at(pos) == '_') {
    spec.grouping = text[pos++];
    if (is_string) return InvalidArgument("cannot specify '{}' with 's'", spec.grouping);
  }
  if (at(pos) == '.') {
    ++pos;
    if (at(pos) < '0' || at(pos) > '9') return InvalidArgument("format specifier missing precision");
    RETURN_IF_ERROR(ReadNumber(text, &pos, &spec.precision));
  }
  if (pos < text.size()) spec.type = text[pos++];
  if (pos != text.size()) return InvalidArgument("invalid format specifier '{}'", text);
  if (is_string && spec.align == '=')
    return InvalidArgument("'=' alignment not allowed in string format specifier");
  return spec;
}

std::string Group(std::string_view digits, char separator, size_t every) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % every == 0) out += separator;
    out += digits[i];
  }
  return out;
}

// sign, prefix, then the whole digits (grouped, zero-filled up to the width when the fill is 0), then the
// rest.
std::string LayOutNumber(const Spec& spec, bool negative, std::string_view prefix, std::string whole,
                         std::string_view rest, size_t group_every) {
  std::string head = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  head += prefix;
  const auto width = static_cast<size_t>(spec.width);
  const bool zero_fill = spec.align == '=' && spec.fill == "0";
  if (spec.grouping != 0) {
    std::string grouped = Group(whole, spec.grouping, group_every);
    while (zero_fill && head.size() + grouped.size() + rest.size() < width) {
      whole.insert(0, 1, '0');
      grouped = Group(whole, spec.grouping, group_every);
      if (grouped[0] == spec.grouping) grouped.insert(0, 1, '0');
    }
    whole = std::move(grouped);
  }
  std::string padding;
  if (spec.align == '=') {
    for (size_t n = head.size() + whole.size() + rest.size(); n < width; ++n) padding += spec.fill;
  }
  return head + padding + whole + std::string(rest);
}

Result<const String*> Align(Runtime& rt, const String* text, const Spec& spec, char default_align,
                            bool spec_from_user = false) {
  const int64_t padding = spec.width - NumChars(text);
  if (padding <= 0) return text;
  const char align = spec.align == 0 ? default_align : spec.align;
  const int64_t left = align == '<' ? 0 : align == '^' ? padding / 2 : padding;
  ASSIGN_OR_RETURN(const String* fill, CopyText(rt, spec.fill, spec_from_user || HasUser(text)));
  return PadText(rt, text, left, padding - left, fill);
}

Result<const String*> FormatFloatSpec(Runtime& rt, const Value& value, const Spec& spec) {
  const double number = value.as_double();
  const double magnitude = std::fabs(spec.type == '%' ? number * 100 : number);
  RETURN_IF_ERROR(rt.Room(spec.precision));
  RETURN_IF_ERROR(rt.Bytes(spec.precision));
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  std::string digits;
  std::string_view suffix;
  switch (spec.type) {
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      digits = FormatFloatStyle(magnitude, spec.type, precision, spec.alternate);
      break;
    case 'n':
      digits = FormatFloatStyle(magnitude, 'g', precision, spec.alternate);
      break;
    case '%':
      digits = FormatFloatStyle(magnitude, 'f', precision, spec.alternate);
      suffix = "%";
      break;
    case 0:
      if (spec.precision < 0) {
        digits = FormatFloat(magnitude);
      } else {
        digits = FormatFloatStyle(magnitude, 'g', precision, spec.alternate);
        if (std::isfinite(magnitude) && digits.find_first_of(".e") == digits.npos) digits += ".0";
      }
      break;
    default:
      return InvalidArgument("unknown format code '{}' for object of type 'float'", spec.type);
  }
  const size_t dot = std::min(digits.find_first_not_of("0123456789"), digits.size());
  const std::string rest = fmt::format("{}{}", std::string_view(digits).substr(dot), suffix);
  ASSIGN_OR_RETURN(const String* text,
                   CopyText(rt,
                            LayOutNumber(spec, std::signbit(number) && !std::isnan(number), "",
                                         digits.substr(0, dot), rest, 3),
                            value.from_user));
  return Align(rt, text, spec, '>');
}

Result<const String*> FormatIntSpec(Runtime& rt, const Value& value, const Spec& spec) {
  if (spec.precision >= 0) return InvalidArgument("precision not allowed in integer format specifier");
  const Int number = value.as_int();
  int base = 10;
  std::string_view prefix;
  switch (spec.type) {
    case 0:
    case 'd':
    case 'n':
      break;
    case 'b':
      base = 2;
      prefix = "0b";
      break;
    case 'o':
      base = 8;
      prefix = "0o";
      break;
    case 'x':
      base = 16;
      prefix = "0x";
      break;
    case 'X':
      base = 16;
      prefix = "0X";
      break;
    case 'c': {
      if (number < 0 || number > 0x10FFFF || (number >= 0xD800 && number <= 0xDFFF)) {
        return InvalidArgument("%c arg not in range(0x110000)");
      }
      char bytes[4];
      ASSIGN_OR_RETURN(const String* text,
                       CopyText(rt, std::string_view(bytes, EncodeUtf8(static_cast<uint32_t>(number), bytes)),
                                value.from_user));
      return Align(rt, text, spec, '<');
    }
    default:
      return InvalidArgument("unknown format code '{}' for object of type 'int'", spec.type);
  }
  if (spec.grouping == ',' && base != 10) return InvalidArgument("cannot specify ',' with '{}'", spec.type);
  ASSIGN_OR_RETURN(
      const String* text,
      CopyText(rt,
               LayOutNumber(spec, number < 0, spec.alternate ? prefix : std::string_view(),
                            FormatMagnitude(number, base, spec.type == 'X'), "", base == 10 ? 3 : 4),
               value.from_user));
  return Align(rt, text, spec, '>');
}

}  // namespace

Result<const String*> FormatWithSpec(Runtime& rt, const Value& value, std::string_view spec_text,
                                     bool spec_from_user) {
  if (spec_text.empty()) return SoftTextOf(rt, value);
  const Value tainted = value.WithUser(spec_from_user);
  if (value.is_string()) {
    ASSIGN_OR_RETURN(const Spec spec, ParseSpec(spec_text, true));
    if (spec.type != 0 && spec.type != 's') {
      return InvalidArgument("unknown format code '{}' for object of type 'str'", spec.type);
    }
    const String* text = WithMarkup(rt, value.s, false);
    if (spec.precision >= 0 && spec.precision < NumChars(text)) {
      text = Substring(rt, text, 0, CharOffset(text, spec.precision));
    }
    return Align(rt, text, spec, '<', spec_from_user);
  }
  if (value.is_number()) {
    ASSIGN_OR_RETURN(const Spec spec, ParseSpec(spec_text, false));
    constexpr std::string_view kFloatTypes = "eEfFgG%";
    const bool as_float =
        value.is(Kind::kFloat) || (spec.type != 0 && kFloatTypes.find(spec.type) != kFloatTypes.npos);
    return as_float ? FormatFloatSpec(rt, tainted, spec) : FormatIntSpec(rt, tainted, spec);
  }
  return TypeError("unsupported format string passed to {}.__format__", TypeName(value));
}

}  // namespace cachalot::jinja
