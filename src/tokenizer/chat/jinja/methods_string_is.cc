// The str methods that ask: isdigit, isupper and the like.
#include "tokenizer/chat/jinja/jinja_args.h"
#include "tokenizer/chat/jinja/jinja_strings.h"
#include "tokenizer/chat/jinja/methods.h"
#include "tokenizer/chat/jinja/unicode.h"

namespace cachalot::jinja {
namespace {

// Every character has the property, and there is one.
template <bool (*kProperty)(uint32_t)>
Result<Value> All(Runtime& rt, const Value& self, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("str method", args));
  RETURN_IF_ERROR(rt.Bytes(self.s->size));
  for (size_t pos = 0; pos < self.s->size;) {
    size_t size;
    if (!kProperty(DecodeUtf8(self.s->view(), pos, &size))) return Value::Bool(false);
    pos += size;
  }
  return Value::Bool(self.s->size > 0);
}

// islower and isupper: some character has the case, none another one.
template <bool kUpper>
Result<Value> IsCase(Runtime& rt, const Value& self, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("str method", args));
  RETURN_IF_ERROR(rt.Bytes(self.s->size));
  bool any = false;
  for (size_t pos = 0; pos < self.s->size;) {
    size_t size;
    const uint32_t code = DecodeUtf8(self.s->view(), pos, &size);
    if (IsTitle(code) || (kUpper ? IsLower(code) : IsUpper(code))) return Value::Bool(false);
    any = any || (kUpper ? IsUpper(code) : IsLower(code));
    pos += size;
  }
  return Value::Bool(any);
}

Result<Value> StrIsTitle(Runtime& rt, const Value& self, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("istitle", args));
  RETURN_IF_ERROR(rt.Bytes(self.s->size));
  bool any = false;
  bool after_cased = false;
  for (size_t pos = 0; pos < self.s->size;) {
    size_t size;
    const uint32_t code = DecodeUtf8(self.s->view(), pos, &size);
    const bool upper = IsUpper(code) || IsTitle(code);
    const bool lower = IsLower(code);
    if ((upper && after_cased) || (lower && !after_cased)) return Value::Bool(false);
    after_cased = upper || lower;
    any = any || after_cased;
    pos += size;
  }
  return Value::Bool(any);
}

bool IsAscii(uint32_t code) {
  return code < 0x80;
}

Result<Value> StrIsAscii(Runtime& rt, const Value& self, const Args& args) {
  if (self.s->size == 0) return Value::Bool(true);
  return All<IsAscii>(rt, self, args);
}

Result<Value> StrIsPrintable(Runtime& rt, const Value& self, const Args& args) {
  if (self.s->size == 0) return Value::Bool(true);
  return All<IsPrintable>(rt, self, args);
}

bool IsWordPart(uint32_t code) {
  return code == '_' || IsAlnum(code);
}

Result<Value> StrIsIdentifier(Runtime& rt, const Value& self, const Args& args) {
  if (self.s->size > 0) {
    size_t size;
    const uint32_t first = DecodeUtf8(self.s->view(), 0, &size);
    if (first != '_' && !IsAlpha(first)) return Value::Bool(false);
  }
  return All<IsWordPart>(rt, self, args);
}

constexpr MethodEntry kPredicates[] = {
    {"isalnum", All<IsAlnum>},     {"isalpha", All<IsAlpha>},     {"isascii", StrIsAscii},
    {"isdecimal", All<IsDecimal>}, {"isdigit", All<IsDigit>},     {"isidentifier", StrIsIdentifier},
    {"islower", IsCase<false>},    {"isnumeric", All<IsNumeric>}, {"isprintable", StrIsPrintable},
    {"isspace", All<IsSpace>},     {"istitle", StrIsTitle},       {"isupper", IsCase<true>},
};

}  // namespace

MethodFn FindStringPredicate(std::string_view name) {
  if (!name.starts_with("is")) return nullptr;
  for (const MethodEntry& e : kPredicates) {
    if (e.name == name) return e.call;
  }
  return nullptr;
}

}  // namespace cachalot::jinja
