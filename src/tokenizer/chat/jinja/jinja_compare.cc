#include "tokenizer/chat/jinja/jinja_compare.h"

#include <cmath>
#include <cstring>

#include "tokenizer/chat/jinja/dict.h"
#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/numbers.h"

namespace cachalot::jinja {
namespace {

// -1, 0, 1, or 2 when one is not a number.
int CompareNumbers(const Value& a, const Value& b) {
  if (a.is_int_like() && b.is_int_like()) {
    const Int x = a.as_int();
    const Int y = b.as_int();
    return x < y ? -1 : x > y;
  }
  if (a.is(Kind::kFloat) && b.is(Kind::kFloat)) {
    if (std::isnan(a.f) || std::isnan(b.f)) return 2;
    return a.f < b.f ? -1 : a.f > b.f;
  }
  if (a.is(Kind::kFloat)) {
    const int reversed = CompareNumbers(b, a);
    return reversed == 2 ? 2 : -reversed;
  }
  // An integer against a float, exactly.
  if (std::isnan(b.f)) return 2;
  const std::optional<Int> whole = TruncateToInt(b.f);
  if (!whole) return b.f > 0 ? -1 : 1;
  const Int x = a.as_int();
  if (x != *whole) return x < *whole ? -1 : 1;
  const double rest = b.f - std::trunc(b.f);
  return rest > 0 ? -1 : rest < 0;
}

bool Holds(Order order, int comparison) {
  if (comparison == 2) return false;
  switch (order) {
    case Order::kLess:
      return comparison < 0;
    case Order::kLessEqual:
      return comparison <= 0;
    case Order::kGreater:
      return comparison > 0;
    case Order::kGreaterEqual:
      return comparison >= 0;
  }
  return false;
}

const char* Symbol(Order order) {
  switch (order) {
    case Order::kLess:
      return "<";
    case Order::kLessEqual:
      return "<=";
    case Order::kGreater:
      return ">";
    case Order::kGreaterEqual:
      return ">=";
  }
  return "";
}

Result<bool> EqualItems(Runtime& rt, std::span<const Value> a, std::span<const Value> b, int depth) {
  if (a.size() != b.size()) return false;
  RETURN_IF_ERROR(rt.Nesting(depth));
  for (size_t i = 0; i < a.size(); ++i) {
    ASSIGN_OR_RETURN(const bool same, Equal(rt, a[i], b[i], depth + 1));
    if (!same) return false;
  }
  return true;
}

Result<bool> EqualDicts(Runtime& rt, const Dict* a, const Dict* b, int depth) {
  if (a->size != b->size) return false;
  RETURN_IF_ERROR(rt.Nesting(depth));
  for (uint32_t i = 0; i < a->size; ++i) {
    ASSIGN_OR_RETURN(const Value* other, DictFind(rt, b, a->entries[i].key));
    if (other == nullptr) return false;
    ASSIGN_OR_RETURN(const bool same, Equal(rt, a->entries[i].value, *other, depth + 1));
    if (!same) return false;
  }
  return true;
}

}  // namespace

std::string_view TypeName(const Value& value) {
  switch (value.kind) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return value.s->markup ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kRange:
      return "range";
    case Kind::kView:
      return value.view->kind == ViewKind::kItems  ? "dict_items"
             : value.view->kind == ViewKind::kKeys ? "dict_keys"
                                                   : "dict_values";
    case Kind::kIterator:
      return "generator";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kMacro:
      return "Macro";
    case Kind::kBuiltin:
      return "function";
    case Kind::kMethod:
      return "method";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kCycler:
      return "Cycler";
    case Kind::kJoiner:
      return "Joiner";
  }
  return "object";
}

Status UndefinedError(const Value& value) {
  const UndefinedInfo* info = value.undefined;
  if (info == nullptr) return InvalidArgument("undefined value");
  if (!info->hint.empty()) return InvalidArgument("{}", info->hint);
  if (info->obj_type.empty()) return InvalidArgument("'{}' is undefined", info->name);
  return InvalidArgument("'{} object' has no attribute '{}'", info->obj_type, info->name);
}

bool Truth(const Value& value) {
  switch (value.kind) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.b;
    case Kind::kInt:
      return value.i != 0;
    case Kind::kFloat:
      return value.f != 0;
    case Kind::kString:
      return value.s->size != 0;
    case Kind::kList:
    case Kind::kTuple:
      return value.seq->size != 0;
    case Kind::kDict:
      return value.dict->size != 0;
    case Kind::kRange:
      return value.range->size != 0;
    case Kind::kView:
      return value.view->dict->size != 0;
    default:
      return true;
  }
}

Result<bool> Equal(Runtime& rt, const Value& a, const Value& b, int depth) {
  if (a.is_number() && b.is_number()) return CompareNumbers(a, b) == 0;
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      if (a.s->size != b.s->size) return false;
      RETURN_IF_ERROR(rt.Bytes(a.s->size));
      return a.s->view() == b.s->view();
    case Kind::kList:
    case Kind::kTuple:
      return EqualItems(rt, a.items(), b.items(), depth);
    case Kind::kDict:
      return EqualDicts(rt, a.dict, b.dict, depth);
    case Kind::kRange: {
      const Range& x = *a.range;
      const Range& y = *b.range;
      if (x.size != y.size) return false;
      return x.size == 0 || (x.start == y.start && (x.size == 1 || x.step == y.step));
    }
    case Kind::kMethod:
      return a.method == b.method;
    default:
      return a.dict == b.dict;  // the same object
  }
}

Result<bool> InOrder(Runtime& rt, Order order, const Value& a, const Value& b, int depth) {
  if (a.is_undefined()) return UndefinedError(a);
  if (b.is_undefined()) return UndefinedError(b);
  if (a.is_number() && b.is_number()) return Holds(order, CompareNumbers(a, b));
  if (a.is_string() && b.is_string()) {
    RETURN_IF_ERROR(rt.Bytes(std::min(a.s->size, b.s->size)));
    const int c = a.s->view().compare(b.s->view());  // the order of UTF-8 bytes is that of code points
    return Holds(order, c < 0 ? -1 : c > 0);
  }
  if (a.is_list_or_tuple() && a.kind == b.kind) {
    RETURN_IF_ERROR(rt.Nesting(depth));
    const auto x = a.items();
    const auto y = b.items();
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      ASSIGN_OR_RETURN(const bool same, Equal(rt, x[i], y[i], depth + 1));
      if (!same) return InOrder(rt, order, x[i], y[i], depth + 1);
    }
    return Holds(order, x.size() < y.size() ? -1 : x.size() > y.size());
  }
  return TypeError("'{}' not supported between instances of '{}' and '{}'", Symbol(order), TypeName(a),
                   TypeName(b));
}

Result<bool> Contains(Runtime& rt, const Value& needle, const Value& haystack) {
  switch (haystack.kind) {
    case Kind::kString:
      if (!needle.is_string()) {
        return TypeError("'in <string>' requires string as left operand, not {}", TypeName(needle));
      }
      RETURN_IF_ERROR(rt.Bytes(haystack.s->size));
      return FindText(haystack.s->view(), needle.s->view()) != std::string_view::npos;
    case Kind::kDict: {
      ASSIGN_OR_RETURN(const Value* found, DictFind(rt, haystack.dict, needle));
      return found != nullptr;
    }
    case Kind::kView:
      if (haystack.view->kind == ViewKind::kKeys) {
        ASSIGN_OR_RETURN(const Value* found, DictFind(rt, haystack.view->dict, needle));
        return found != nullptr;
      }
      break;
    default:
      break;
  }
  if (!IsIterable(haystack)) return TypeError("argument of type '{}' is not iterable", TypeName(haystack));
  ASSIGN_OR_RETURN(Iterator * iterator, MakeIterator(rt, haystack));
  Value item;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, iterator->Next(rt, &item));
    if (!more) return false;
    ASSIGN_OR_RETURN(const bool same, Equal(rt, item, needle));
    if (same) return true;
  }
}

size_t FindText(std::string_view text, std::string_view needle, size_t from) {
  if (needle.empty()) return from <= text.size() ? from : std::string_view::npos;
  if (from >= text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

Result<size_t> FindLastText(Runtime& rt, std::string_view text, std::string_view needle, size_t end) {
  if (needle.size() > end) return std::string_view::npos;
  RETURN_IF_ERROR(rt.Bytes(static_cast<int64_t>(end)));
  if (needle.empty()) return end;
  for (size_t at = end - needle.size() + 1; at-- > 0;) {
    if (text[at] != needle.front() || text[at + needle.size() - 1] != needle.back()) continue;
    RETURN_IF_ERROR(rt.Work(1 + static_cast<int64_t>(needle.size() >> 6)));
    if (text.substr(at, needle.size()) == needle) return at;
  }
  return std::string_view::npos;
}

}  // namespace cachalot::jinja
