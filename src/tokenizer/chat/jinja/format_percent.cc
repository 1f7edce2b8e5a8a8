// "…" % values: Python's printf-style formatting.
#include <cmath>

#include "tokenizer/chat/jinja/dict.h"
#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_compare.h"
#include "tokenizer/chat/jinja/numbers.h"
#include "tokenizer/chat/jinja/text_of.h"
#include "tokenizer/chat/jinja/text_ops.h"
#include "tokenizer/chat/jinja/unicode.h"

namespace cachalot::jinja {
namespace {

constexpr int64_t kMaxField = 1 << 24;  // width and precision

struct Field {
  bool left = false, plus = false, space = false, alternate = false, zero = false;
  int64_t width = 0;
  int64_t precision = -1;
};

class Percent {
 public:
  Percent(Runtime& rt, const String* format, const Value& value)
      : rt_(rt), format_(format), value_(value), out_(rt) {
    if (value.is(Kind::kTuple))
      args_ = value.items();
    else
      args_ = std::span<const Value>(&value_, 1);
    mapping_ = value.is_dict() || value.is(Kind::kList) || value.is_undefined() || value.is(Kind::kRange);
  }

  Result<const String*> Run() {
    const std::string_view text = format_->view();
    RETURN_IF_ERROR(rt_.Bytes(format_->size));
    size_t plain = 0;
    for (size_t pos = text.find('%'); pos != text.npos; pos = text.find('%', plain)) {
      out_.Add(format_, plain, pos);
      pos_ = pos + 1;
      RETURN_IF_ERROR(One());
      RETURN_IF_ERROR(out_.status());
      plain = pos_;
    }
    out_.Add(format_, plain, text.size());
    if (next_ < args_.size() && !mapping_)
      return TypeError("not all arguments converted during string formatting");
    return out_.Finish(format_->markup);
  }

 private:
  Result<char> Peek() const {
    if (pos_ >= format_->size) return InvalidArgument("incomplete format");
    return format_->data[pos_];
  }

  Result<Value> NextArg() {
    if (has_key_) return keyed_;
    if (next_ >= args_.size()) return TypeError("not enough arguments for format string");
    return args_[next_++];
  }

  Status Number(int64_t* out) {
    ASSIGN_OR_RETURN(char c, Peek());
    if (c == '*') {
      ++pos_;
      ASSIGN_OR_RETURN(const Value v, NextArg());
      if (!v.is_int_like()) return TypeError("* wants int");
      if (v.as_int() > kMaxField || v.as_int() < -kMaxField)
        return Exhausted("a format's width or precision is too large");
      *out = static_cast<int64_t>(v.as_int());
      return Status::Ok();
    }
    while (c >= '0' && c <= '9') {
      *out = *out * 10 + (c - '0');
      if (*out > kMaxField) return Exhausted("a format's width or precision is too large");
      ++pos_;
      ASSIGN_OR_RETURN(c, Peek());
    }
    return Status::Ok();
  }

  Status Key() {
    const size_t begin = ++pos_;
    int open = 1;
    while (pos_ < format_->size) {
      const char c = format_->data[pos_++];
      if (c == '(') ++open;
      if (c == ')' && --open == 0) break;
    }
    if (open != 0) return InvalidArgument("incomplete format key");
    if (!mapping_) return TypeError("format requires a mapping");
    if (value_.is_undefined()) return UndefinedError(value_);
    if (!value_.is_dict()) return TypeError("list indices must be integers or slices, not str");
    const std::string_view key = format_->view().substr(begin, pos_ - 1 - begin);
    ASSIGN_OR_RETURN(const Value* found, DictFind(rt_, value_.dict, key));
    if (found == nullptr) return InvalidArgument("format has no value for the key '{}'", key);
    keyed_ = *found;
    has_key_ = true;
    next_ = args_.size();
    return Status::Ok();
  }

  Status One() {
    has_key_ = false;
    Field field;
    ASSIGN_OR_RETURN(char c, Peek());
    if (c == '(') RETURN_IF_ERROR(Key());
    for (;;) {
      ASSIGN_OR_RETURN(c, Peek());
      if (c == '-')
        field.left = true;
      else if (c == '+')
        field.plus = true;
      else if (c == ' ')
        field.space = true;
      else if (c == '#')
        field.alternate = true;
      else if (c == '0')
        field.zero = true;
      else
        break;
      ++pos_;
    }
    RETURN_IF_ERROR(Number(&field.width));
    if (field.width < 0) {
      field.left = true;
      field.width = -field.width;
    }
    ASSIGN_OR_RETURN(c, Peek());
    if (c == '.') {
      ++pos_;
      field.precision = 0;
      RETURN_IF_ERROR(Number(&field.precision));
      if (field.precision < 0) field.precision = 0;
    }
    ASSIGN_OR_RETURN(c, Peek());
    if (c == 'h' || c == 'l' || c == 'L') {
      ++pos_;
      ASSIGN_OR_RETURN(c, Peek());
    }
    ++pos_;
    if (c == '%') {
      out_.Add("%", false);
      return Status::Ok();
    }
    RETURN_IF_ERROR(rt_.Room(field.width + field.precision));
    ASSIGN_OR_RETURN(const Value arg, NextArg());
    return Convert(c, arg, field);
  }

  Status Convert(char type, const Value& arg, const Field& field) {
    switch (type) {
      case 's':
      case 'r':
      case 'a':
        return Text(type, arg, field);
      case 'c':
        return Char(arg, field);
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        return Integer(type, arg, field);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        return Float(type, arg, field);
      default:
        return InvalidArgument("unsupported format character '{}'", type);
    }
  }

  Status Text(char type, const Value& arg, const Field& field) {
    if (type == 'a') return Unsupported("the format %a");
    const String* text;
    if (type == 's') {
      ASSIGN_OR_RETURN(text, format_->markup ? SoftTextOf(rt_, arg) : TextOf(rt_, arg));
    } else {
      ASSIGN_OR_RETURN(text, ReprOf(rt_, arg));
    }
    if (format_->markup) {
      ASSIGN_OR_RETURN(text, EscapeHtml(rt_, text));
    }
    if (field.precision >= 0 && field.precision < NumChars(text)) {
      text = Substring(rt_, text, 0, CharOffset(text, field.precision));
    }
    return Emit(text, field);
  }

  Status Char(const Value& arg, const Field& field) {
    if (arg.is_string() && NumChars(arg.s) == 1) return Emit(arg.s, field);
    if (!arg.is_int_like()) return TypeError("%c requires int or char");
    const Int code = arg.as_int();
    if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
      return InvalidArgument("%c arg not in range");
    char bytes[4];
    const size_t n = EncodeUtf8(static_cast<uint32_t>(code), bytes);
    ASSIGN_OR_RETURN(const String* text, CopyText(rt_, std::string_view(bytes, n), arg.from_user));
    return Emit(text, field);
  }

  Status Integer(char type, const Value& arg, const Field& field) {
    Int value;
    if (arg.is_int_like()) {
      value = arg.as_int();
    } else if (arg.is(Kind::kFloat) && type != 'x' && type != 'X' && type != 'o') {
      const std::optional<Int> whole = TruncateToInt(arg.f);
      if (!whole) return InvalidArgument("cannot convert float {} to integer", FormatFloat(arg.f));
      value = *whole;
    } else if (arg.is_undefined()) {
      return UndefinedError(arg);
    } else {
      return TypeError("%{} format: a number is required, not {}", type, TypeName(arg));
    }
    const int base = type == 'o' ? 8 : type == 'x' || type == 'X' ? 16 : 10;
    std::string digits = FormatMagnitude(value, base, type == 'X');
    if (field.precision > static_cast<int64_t>(digits.size())) {
      digits.insert(0, static_cast<size_t>(field.precision) - digits.size(), '0');
    }
    std::string_view prefix;
    if (field.alternate && base != 10) prefix = type == 'o' ? "0o" : type == 'x' ? "0x" : "0X";
    return EmitNumber(value < 0, prefix, digits, field, arg.from_user);
  }

  Status Float(char type, const Value& arg, const Field& field) {
    if (arg.is_undefined()) return UndefinedError(arg);
    if (!arg.is_number()) return TypeError("must be real number, not {}", TypeName(arg));
    const double value = arg.as_double();
    RETURN_IF_ERROR(rt_.Bytes(field.precision));
    const std::string digits = FormatFloatStyle(
        std::fabs(value), type, field.precision < 0 ? 6 : static_cast<int>(field.precision), field.alternate);
    return EmitNumber(std::signbit(value) && !std::isnan(value), "", digits, field, arg.from_user);
  }

  Status EmitNumber(bool negative, std::string_view prefix, std::string_view digits, const Field& field,
                    bool user) {
    std::string text;
    if (negative || field.plus || field.space) text += negative ? '-' : field.plus ? '+' : ' ';
    text += prefix;
    const auto length = static_cast<int64_t>(text.size() + digits.size());
    if (field.zero && !field.left && field.width > length)
      text.append(static_cast<size_t>(field.width - length), '0');
    text += digits;
    ASSIGN_OR_RETURN(const String* s, CopyText(rt_, text, user));
    return Emit(s, field);
  }

  Status Emit(const String* text, const Field& field) {
    const int64_t padding = field.width - NumChars(text);
    if (padding > 0 && !field.left) out_.Add(std::string(static_cast<size_t>(padding), ' '), HasUser(text));
    out_.Add(text);
    if (padding > 0 && field.left) out_.Add(std::string(static_cast<size_t>(padding), ' '), HasUser(text));
    return rt_.Work(1 + (std::max<int64_t>(padding, 0) >> 6));
  }

  Runtime& rt_;
  const String* format_;
  Value value_;
  StrBuilder out_;
  std::span<const Value> args_;
  bool mapping_ = false;
  size_t next_ = 0;
  size_t pos_ = 0;
  bool has_key_ = false;
  Value keyed_;
};

}  // namespace

std::string FormatFloatStyle(double magnitude, char style, int precision, bool alternate) {
  const bool upper = style == 'E' || style == 'F' || style == 'G';
  if (std::isnan(magnitude)) return upper ? "NAN" : "nan";
  if (std::isinf(magnitude)) return upper ? "INF" : "inf";
  const char format[] = {
      '%', alternate ? '#' : '.', alternate ? '.' : '*', alternate ? '*' : style, alternate ? style : '\0',
      '\0'};
  const int size = std::snprintf(nullptr, 0, format, precision, magnitude);
  std::string out(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(out.data(), out.size(), format, precision, magnitude);
  out.pop_back();
  return out;
}

Result<const String*> FormatPercent(Runtime& rt, const String* format, const Value& value) {
  return Percent(rt, format, value).Run();
}

}  // namespace cachalot::jinja
