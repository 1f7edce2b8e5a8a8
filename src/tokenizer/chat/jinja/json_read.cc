// json.loads over a string of the template. Recursive, bounded by the nesting limit.
#include "tokenizer/chat/jinja/dict.h"
#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_compare.h"
#include "tokenizer/chat/jinja/json_dump.h"
#include "tokenizer/chat/jinja/numbers.h"
#include "tokenizer/chat/jinja/unicode.h"

namespace cachalot::jinja {
namespace {

class Reader {
 public:
  Reader(Runtime& rt, const String* s) : rt_(rt), text_(s->view()), user_(HasUser(s)) {}

  Result<Value> Document() {
    ASSIGN_OR_RETURN(const Value value, ReadValue(0));
    SkipSpace();
    if (pos_ != text_.size()) return Fail("extra data");
    return value;
  }

 private:
  Status Fail(std::string_view what) const { return InvalidArgument("from_json: {} at byte {}", what, pos_); }

  void SkipSpace() {
    while (pos_ < text_.size() && std::string_view(" \t\r\n").find(text_[pos_]) != std::string_view::npos)
      ++pos_;
  }
  bool Take(std::string_view word) {
    if (text_.substr(pos_, word.size()) != word) return false;
    pos_ += word.size();
    return true;
  }

  Result<Value> ReadValue(int depth) {
    RETURN_IF_ERROR(rt_.Nesting(depth));
    SkipSpace();
    if (pos_ == text_.size()) return Fail("expecting a value");
    switch (text_[pos_]) {
      case '{':
        return ReadObject(depth);
      case '[':
        return ReadArray(depth);
      case '"': {
        ASSIGN_OR_RETURN(const String* s, ReadString());
        return Value::Str(s);
      }
      default:
        break;
    }
    if (Take("null")) return Value::None().WithUser(user_);
    if (Take("true")) return Value::Bool(true).WithUser(user_);
    if (Take("false")) return Value::Bool(false).WithUser(user_);
    if (Take("NaN")) return Value::Float(*ParseFloat("nan")).WithUser(user_);
    if (Take("Infinity")) return Value::Float(*ParseFloat("inf")).WithUser(user_);
    if (Take("-Infinity")) return Value::Float(*ParseFloat("-inf")).WithUser(user_);
    return ReadNumber();
  }

  Result<Value> ReadNumber() {
    const size_t begin = pos_;
    const auto digits = [&] {
      const size_t first = pos_;
      while (pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9') ++pos_;
      return pos_ - first;
    };
    Take("-");
    if (!Take("0") && digits() == 0) {
      pos_ = begin;
      return Fail("expecting a value");
    }
    bool is_float = false;
    const size_t after_whole = pos_;
    if (Take(".")) {
      if (digits() > 0) {
        is_float = true;
      } else {
        pos_ = after_whole;
      }
    }
    const size_t after_fraction = pos_;
    if (Take("e") || Take("E")) {
      if (!Take("+")) Take("-");
      if (digits() > 0) {
        is_float = true;
      } else {
        pos_ = after_fraction;
      }
    }
    const std::string_view number = text_.substr(begin, pos_ - begin);
    if (is_float) return Value::Float(ParseFloat(number).value_or(0)).WithUser(user_);
    NumberError error;
    const std::optional<Int> integer = ParseInt(number, 10, &error);
    if (!integer) return IntOverflow();
    return Value::Integer(*integer).WithUser(user_);
  }

  Result<const String*> ReadString() {
    ++pos_;
    StrBuilder out(rt_);
    for (;;) {
      if (pos_ == text_.size()) return Fail("unterminated string");
      const auto c = static_cast<uint8_t>(text_[pos_]);
      if (c < 0x20) return Fail("invalid control character");
      ++pos_;
      if (c == '"') break;
      if (c != '\\') {
        out.Add(text_.substr(pos_ - 1, 1), user_);
        continue;
      }
      if (pos_ == text_.size()) return Fail("unterminated string");
      const char escape = text_[pos_++];
      static constexpr std::string_view kFrom = "\"\\/bfnrt";
      static constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
      const size_t at = kFrom.find(escape);
      if (at != std::string_view::npos) {
        out.Add(kTo.substr(at, 1), user_);
      } else if (escape == 'u') {
        ASSIGN_OR_RETURN(uint32_t code, ReadHex());
        if (code >= 0xD800 && code < 0xDC00 && Take("\\u")) {
          ASSIGN_OR_RETURN(const uint32_t low, ReadHex());
          if (low < 0xDC00 || low > 0xDFFF) return Fail("lone surrogate");
          code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        } else if (code >= 0xD800 && code <= 0xDFFF) {
          return Fail("lone surrogate");
        }
        out.AddCode(code, user_);
      } else {
        return Fail("invalid escape");
      }
    }
    RETURN_IF_ERROR(rt_.Bytes(static_cast<int64_t>(out.size())));
    return out.Finish();
  }

  Result<uint32_t> ReadHex() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = pos_ < text_.size() ? text_[pos_] : ' ';
      const int lower = c | 0x20;
      const int digit = c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
      if (digit < 0) return Fail("invalid \\u escape");
      code = code * 16 + static_cast<uint32_t>(digit);
      ++pos_;
    }
    return code;
  }

  Result<Value> ReadArray(int depth) {
    ++pos_;
    std::vector<Value> items;
    SkipSpace();
    if (!Take("]")) {
      for (;;) {
        ASSIGN_OR_RETURN(const Value item, ReadValue(depth + 1));
        RETURN_IF_ERROR(rt_.Room(static_cast<int64_t>((items.size() + 1) * sizeof(Value))));
        items.push_back(item);
        SkipSpace();
        if (Take("]")) break;
        if (!Take(",")) return Fail("expecting ',' or ']'");
      }
    }
    return MakeSequence(rt_, Kind::kList, items);
  }

  Result<Value> ReadObject(int depth) {
    ++pos_;
    DictBuilder dict(rt_);
    SkipSpace();
    if (!Take("}")) {
      for (;;) {
        SkipSpace();
        if (pos_ == text_.size() || text_[pos_] != '"') return Fail("expecting a property name");
        ASSIGN_OR_RETURN(const String* key, ReadString());
        SkipSpace();
        if (!Take(":")) return Fail("expecting ':'");
        ASSIGN_OR_RETURN(const Value value, ReadValue(depth + 1));
        RETURN_IF_ERROR(dict.Set(Value::Str(key), value).status());
        SkipSpace();
        if (Take("}")) break;
        if (!Take(",")) return Fail("expecting ',' or '}'");
      }
    }
    return dict.Finish();
  }

  Runtime& rt_;
  std::string_view text_;
  bool user_;
  size_t pos_ = 0;
};

}  // namespace

Result<Value> ParseJson(Runtime& rt, const String* text) {
  return Reader(rt, text).Document();
}

}  // namespace cachalot::jinja
