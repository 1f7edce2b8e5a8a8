// "…".format(…) and format(value, spec).
#include <cmath>

#include "tokenizer/chat/jinja/access.h"
#include "tokenizer/chat/jinja/compare.h"
#include "tokenizer/chat/jinja/iterate.h"
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

bool IsAlign(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

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
  if (is_string && spec.align == '=') return InvalidArgument("'=' alignment not allowed in string format specifier");
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

// sign, prefix, then the whole digits (grouped, zero-filled up to the width when the fill is 0), then the rest.
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

Result<const String*> Align(Runtime& rt, const String* text, const Spec& spec, char default_align) {
  const int64_t padding = spec.width - NumChars(text);
  if (padding <= 0) return text;
  const char align = spec.align == 0 ? default_align : spec.align;
  const int64_t left = align == '<' ? 0 : align == '^' ? padding / 2 : padding;
  ASSIGN_OR_RETURN(const String* fill, CopyText(rt, spec.fill, HasUser(text)));
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
    case 'G': digits = FormatFloatStyle(magnitude, spec.type, precision, spec.alternate); break;
    case 'n': digits = FormatFloatStyle(magnitude, 'g', precision, spec.alternate); break;
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
    default: return InvalidArgument("unknown format code '{}' for object of type 'float'", spec.type);
  }
  const size_t dot = std::min(digits.find_first_not_of("0123456789"), digits.size());
  const std::string rest = fmt::format("{}{}", std::string_view(digits).substr(dot), suffix);
  ASSIGN_OR_RETURN(const String* text,
                   CopyText(rt, LayOutNumber(spec, std::signbit(number) && !std::isnan(number), "", digits.substr(0, dot), rest, 3),
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
    case 'n': break;
    case 'b': base = 2; prefix = "0b"; break;
    case 'o': base = 8; prefix = "0o"; break;
    case 'x': base = 16; prefix = "0x"; break;
    case 'X': base = 16; prefix = "0X"; break;
    case 'c': {
      if (number < 0 || number > 0x10FFFF || (number >= 0xD800 && number <= 0xDFFF)) {
        return InvalidArgument("%c arg not in range(0x110000)");
      }
      char bytes[4];
      ASSIGN_OR_RETURN(const String* text,
                       CopyText(rt, std::string_view(bytes, EncodeUtf8(static_cast<uint32_t>(number), bytes)), value.from_user));
      return Align(rt, text, spec, '<');
    }
    default: return InvalidArgument("unknown format code '{}' for object of type 'int'", spec.type);
  }
  if (spec.grouping == ',' && base != 10) return InvalidArgument("cannot specify ',' with '{}'", spec.type);
  ASSIGN_OR_RETURN(const String* text,
                   CopyText(rt, LayOutNumber(spec, number < 0, spec.alternate ? prefix : std::string_view(),
                                             FormatMagnitude(number, base, spec.type == 'X'), "", base == 10 ? 3 : 4),
                            value.from_user));
  return Align(rt, text, spec, '>');
}

class Braces {
 public:
  Braces(Runtime& rt, const Args& args, const Value* mapping) : rt_(rt), args_(args), mapping_(mapping) {}

  // `depth`: fields may stand inside a field's specification, once.
  Status Run(const String* format, int depth, StrBuilder* out) {
    if (depth < 0) return InvalidArgument("Max string recursion exceeded");
    const std::string_view text = format->view();
    RETURN_IF_ERROR(rt_.Bytes(format->size));
    size_t pos = 0;
    while (pos < text.size()) {
      const size_t brace = std::min(text.find_first_of("{}", pos), text.size());
      out->Add(format, pos, brace);
      pos = brace;
      if (pos == text.size()) break;
      if (pos + 1 < text.size() && text[pos + 1] == text[pos]) {
        out->Add(format, pos, pos + 1);
        pos += 2;
        continue;
      }
      if (text[pos] == '}') return InvalidArgument("Single '}}' encountered in format string");
      size_t end = pos + 1;
      int open = 1;
      for (; end < text.size() && open > 0; ++end) {
        if (text[end] == '{') ++open;
        if (text[end] == '}') --open;
      }
      if (open > 0) return InvalidArgument("expected '}}' before end of string");
      RETURN_IF_ERROR(Field(format, pos + 1, end - 1, depth, out));
      RETURN_IF_ERROR(out->status());
      pos = end;
    }
    return Status::Ok();
  }

 private:
  Status Field(const String* format, size_t begin, size_t end, int depth, StrBuilder* out) {
    RETURN_IF_ERROR(rt_.Step());
    const std::string_view text = format->view();
    size_t name_end = begin;
    bool in_brackets = false;
    for (; name_end < end; ++name_end) {
      const char c = text[name_end];
      if (c == '[') in_brackets = true;
      if (c == ']') in_brackets = false;
      if (!in_brackets && (c == ':' || c == '!')) break;
      if (c == '{') return InvalidArgument("unexpected '{{' in field name");
    }
    size_t pos = name_end;
    char conversion = 0;
    if (pos < end && text[pos] == '!') {
      if (pos + 1 >= end) return InvalidArgument("end of string while looking for conversion specifier");
      conversion = text[pos + 1];
      pos += 2;
      if (pos < end && text[pos] != ':') return InvalidArgument("expected ':' after conversion specifier");
    }
    if (pos < end) ++pos;
    ASSIGN_OR_RETURN(Value value, Lookup(text.substr(begin, name_end - begin)));
    if (conversion == 's') {
      ASSIGN_OR_RETURN(const String* s, TextOf(rt_, value));
      value = Value::Str(s);
    } else if (conversion == 'r') {
      ASSIGN_OR_RETURN(const String* s, ReprOf(rt_, value));
      value = Value::Str(s);
    } else if (conversion != 0) {
      return Unsupported("the conversion '{}' in a format string", conversion);
    }
    StrBuilder spec(rt_);
    RETURN_IF_ERROR(Run(Substring(rt_, format, pos, end), depth - 1, &spec));
    const bool spec_from_user = !spec.ranges().empty();
    ASSIGN_OR_RETURN(const String* formatted, FormatWithSpec(rt_, value, spec.text(), spec_from_user));
    if (escape) {
      ASSIGN_OR_RETURN(formatted, EscapeHtml(rt_, formatted));
    }
    out->Add(formatted);
    return Status::Ok();
  }

  Result<Value> Lookup(std::string_view name) {
    const size_t first_end = std::min(name.find_first_of(".["), name.size());
    std::string_view first = name.substr(0, first_end);
    const bool number = !first.empty() && first.find_first_not_of("0123456789") == first.npos;
    Value value;
    if (first.empty() || number) {
      if ((number && next_ > 0) || (!number && manual_)) {
        return InvalidArgument("cannot switch between manual and automatic field numbering");
      }
      size_t index = next_;
      if (number) {
        manual_ = true;
        NumberError error;
        const Int parsed = ParseInt(first, 10, &error).value_or(Int{1} << 40);
        index = static_cast<size_t>(std::min<Int>(parsed, Int{1} << 40));
      } else {
        ++next_;
      }
      if (index >= args_.positional.size()) return InvalidArgument("replacement index {} out of range", index);
      value = args_.positional[index];
    } else if (mapping_ != nullptr) {
      ASSIGN_OR_RETURN(const String* key, CopyText(rt_, first, false));
      if (!mapping_->is_dict()) return TypeError("format_map() wants a mapping");
      ASSIGN_OR_RETURN(const Value* found, DictFind(rt_, mapping_->dict, key->view()));
      if (found == nullptr) return InvalidArgument("format has no value for the key '{}'", first);
      value = *found;
    } else {
      const Keyword* found = nullptr;
      for (const Keyword& k : args_.keywords) {
        if (k.name == first) found = &k;
      }
      if (found == nullptr) return InvalidArgument("format has no value for the key '{}'", first);
      value = found->value;
    }
    return Follow(value, name.substr(first_end));
  }

  Result<Value> Follow(Value value, std::string_view path) {
    while (!path.empty()) {
      if (path[0] == '.') {
        const size_t end = std::min(path.find_first_of(".[", 1), path.size());
        if (end == 1) return InvalidArgument("Empty attribute in format string");
        ASSIGN_OR_RETURN(const String* key, CopyText(rt_, path.substr(1, end - 1), false));
        ASSIGN_OR_RETURN(value, GetAttribute(rt_, value, key->view()));
        path.remove_prefix(end);
        continue;
      }
      if (path[0] != '[') return InvalidArgument("Only '.' or '[' may follow ']' in format field specifier");
      const size_t end = path.find(']');
      if (end == path.npos) return InvalidArgument("Missing ']' in format string");
      const std::string_view key = path.substr(1, end - 1);
      if (key.empty()) return InvalidArgument("Empty attribute in format string");
      Value index;
      if (key.find_first_not_of("0123456789") == key.npos) {
        NumberError error;
        index = Value::Integer(ParseInt(key, 10, &error).value_or(Int{1} << 40));
      } else {
        ASSIGN_OR_RETURN(const String* text, CopyText(rt_, key, false));
        index = Value::Str(text);
      }
      ASSIGN_OR_RETURN(value, GetItem(rt_, value, index));
      path.remove_prefix(end + 1);
    }
    return value;
  }

 public:
  bool escape = false;  // the format string is Markup

 private:
  Runtime& rt_;
  const Args& args_;
  const Value* mapping_;
  size_t next_ = 0;
  bool manual_ = false;
};

}  // namespace

Result<const String*> FormatWithSpec(Runtime& rt, const Value& value, std::string_view spec_text, bool spec_from_user) {
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
    return Align(rt, text, spec, '<');
  }
  if (value.is_number()) {
    ASSIGN_OR_RETURN(const Spec spec, ParseSpec(spec_text, false));
    constexpr std::string_view kFloatTypes = "eEfFgG%";
    const bool as_float = value.is(Kind::kFloat) || (spec.type != 0 && kFloatTypes.find(spec.type) != kFloatTypes.npos);
    return as_float ? FormatFloatSpec(rt, tainted, spec) : FormatIntSpec(rt, tainted, spec);
  }
  return TypeError("unsupported format string passed to {}.__format__", TypeName(value));
}

Result<const String*> FormatBraces(Runtime& rt, const String* format, const Args& args, const Value* mapping) {
  StrBuilder out(rt);
  Braces braces(rt, args, mapping);
  braces.escape = format->markup;
  RETURN_IF_ERROR(braces.Run(format, 2, &out));
  return out.Finish(format->markup);
}

}  // namespace cachalot::jinja
