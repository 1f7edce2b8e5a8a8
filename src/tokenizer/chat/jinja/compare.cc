#include "tokenizer/chat/jinja/compare.h"

#include <cmath>
#include <cstring>

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
    case Order::kLess: return comparison < 0;
    case Order::kLessEqual: return comparison <= 0;
    case Order::kGreater: return comparison > 0;
    case Order::kGreaterEqual: return comparison >= 0;
  }
  return false;
}

const char* Symbol(Order order) {
  switch (order) {
    case Order::kLess: return "<";
    case Order::kLessEqual: return "<=";
    case Order::kGreater: return ">";
    case Order::kGreaterEqual: return ">=";
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

uint64_t Mix(uint64_t h, uint64_t x) {
  h = (h ^ x) * 0x9E3779B97F4A7C15ull;
  return h ^ (h >> 29);
}

uint64_t HashText(std::string_view text) { return std::hash<std::string_view>()(text); }

constexpr uint32_t kLinearDict = 12;  // entries up to which a scan beats hashing

// Visits the slots of `hash`; `match(entry)` is a Result<bool>. Returns the entry or -1.
template <typename Match>
Result<int64_t> Probe(Runtime& rt, const uint32_t* slots, uint64_t mask, uint64_t hash, Match match) {
  for (uint64_t at = hash & mask;; at = (at + 1) & mask) {
    RETURN_IF_ERROR(rt.Work(1));
    if (slots[at] == 0) return int64_t{-1};
    const uint32_t entry = slots[at] - 1;
    ASSIGN_OR_RETURN(const bool same, match(entry));
    if (same) return int64_t{entry};
  }
}

void Insert(uint32_t* slots, uint64_t mask, uint64_t hash, uint32_t entry) {
  uint64_t at = hash & mask;
  while (slots[at] != 0) at = (at + 1) & mask;
  slots[at] = entry + 1;
}

Status MakeIndex(Runtime& rt, const Dict* dict) {
  uint32_t capacity = 32;
  while (capacity < dict->size * 2) capacity *= 2;
  RETURN_IF_ERROR(rt.Room(capacity * int64_t{4}));
  uint32_t* slots = rt.arena.NewArray<uint32_t>(capacity);
  for (uint32_t i = 0; i < dict->size; ++i) {
    ASSIGN_OR_RETURN(const uint64_t hash, HashOf(rt, dict->entries[i].key));
    Insert(slots, capacity - 1, hash, i);
  }
  dict->index = slots;
  dict->index_mask = capacity - 1;
  return Status::Ok();
}

}  // namespace

std::string_view TypeName(const Value& value) {
  switch (value.kind) {
    case Kind::kMissing:
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return value.s->markup ? "Markup" : "str";
    case Kind::kList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kDict: return "dict";
    case Kind::kRange: return "range";
    case Kind::kView:
      return value.view->kind == ViewKind::kItems  ? "dict_items"
             : value.view->kind == ViewKind::kKeys ? "dict_keys"
                                                   : "dict_values";
    case Kind::kIterator: return "generator";
    case Kind::kNamespace: return "Namespace";
    case Kind::kMacro: return "Macro";
    case Kind::kBuiltin: return "function";
    case Kind::kMethod: return "method";
    case Kind::kLoop: return "LoopContext";
    case Kind::kCycler: return "Cycler";
    case Kind::kJoiner: return "Joiner";
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
    case Kind::kNone: return false;
    case Kind::kBool: return value.b;
    case Kind::kInt: return value.i != 0;
    case Kind::kFloat: return value.f != 0;
    case Kind::kString: return value.s->size != 0;
    case Kind::kList:
    case Kind::kTuple: return value.seq->size != 0;
    case Kind::kDict: return value.dict->size != 0;
    case Kind::kRange: return value.range->size != 0;
    case Kind::kView: return value.view->dict->size != 0;
    default: return true;
  }
}

Result<bool> Equal(Runtime& rt, const Value& a, const Value& b, int depth) {
  if (a.is_number() && b.is_number()) return CompareNumbers(a, b) == 0;
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kUndefined:
    case Kind::kNone: return true;
    case Kind::kString:
      if (a.s->size != b.s->size) return false;
      RETURN_IF_ERROR(rt.Bytes(a.s->size));
      return a.s->view() == b.s->view();
    case Kind::kList:
    case Kind::kTuple: return EqualItems(rt, a.items(), b.items(), depth);
    case Kind::kDict: return EqualDicts(rt, a.dict, b.dict, depth);
    case Kind::kRange: {
      const Range& x = *a.range;
      const Range& y = *b.range;
      if (x.size != y.size) return false;
      return x.size == 0 || (x.start == y.start && (x.size == 1 || x.step == y.step));
    }
    case Kind::kMethod: return a.method == b.method;
    default: return a.dict == b.dict;  // the same object
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
  return TypeError("'{}' not supported between instances of '{}' and '{}'", Symbol(order), TypeName(a), TypeName(b));
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
    default: break;
  }
  if (!IsIterable(haystack)) return TypeError("argument of type '{}' is not iterable", TypeName(haystack));
  ASSIGN_OR_RETURN(Iterator* iterator, MakeIterator(rt, haystack));
  Value item;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, iterator->Next(rt, &item));
    if (!more) return false;
    ASSIGN_OR_RETURN(const bool same, Equal(rt, item, needle));
    if (same) return true;
  }
}

Result<uint64_t> HashOf(Runtime& rt, const Value& value, int depth) {
  switch (value.kind) {
    case Kind::kString:
      RETURN_IF_ERROR(rt.Bytes(value.s->size));
      return HashText(value.s->view());
    case Kind::kFloat: {
      const std::optional<Int> whole = TruncateToInt(value.f);
      if (whole && static_cast<double>(*whole) == value.f) return Mix(1, static_cast<uint64_t>(*whole));
      uint64_t bits;
      std::memcpy(&bits, &value.f, sizeof(bits));
      return Mix(2, bits);
    }
    case Kind::kBool:
    case Kind::kInt: return Mix(1, static_cast<uint64_t>(value.as_int()));
    case Kind::kTuple: {
      RETURN_IF_ERROR(rt.Nesting(depth));
      uint64_t h = 3;
      for (const Value& item : value.items()) {
        ASSIGN_OR_RETURN(const uint64_t x, HashOf(rt, item, depth + 1));
        h = Mix(h, x);
      }
      return h;
    }
    case Kind::kList:
    case Kind::kDict:
    case Kind::kView: return TypeError("unhashable type: '{}'", TypeName(value));
    case Kind::kUndefined:
    case Kind::kNone: return Mix(4, static_cast<uint64_t>(value.kind));
    case Kind::kRange: return Mix(5, static_cast<uint64_t>(value.range->size));
    default: return Mix(6, reinterpret_cast<uintptr_t>(value.dict));
  }
}

Result<const Value*> DictFind(Runtime& rt, const Dict* dict, const Value& key) {
  if (key.is_string()) return DictFind(rt, dict, key.s->view());
  ASSIGN_OR_RETURN(const uint64_t hash, HashOf(rt, key));  // also of a small dict: an unhashable key is an error
  if (dict->size <= kLinearDict) {
    for (uint32_t i = 0; i < dict->size; ++i) {
      ASSIGN_OR_RETURN(const bool same, Equal(rt, dict->entries[i].key, key));
      if (same) return &dict->entries[i].value;
    }
    return nullptr;
  }
  if (dict->index == nullptr) RETURN_IF_ERROR(MakeIndex(rt, dict));
  ASSIGN_OR_RETURN(const int64_t found, Probe(rt, dict->index, dict->index_mask, hash, [&](uint32_t entry) {
                     return Equal(rt, dict->entries[entry].key, key);
                   }));
  return found < 0 ? nullptr : &dict->entries[found].value;
}

Result<const Value*> DictFind(Runtime& rt, const Dict* dict, std::string_view key) {
  const auto matches = [&](uint32_t i) {
    const Value& k = dict->entries[i].key;
    return k.is_string() && k.s->view() == key;
  };
  if (dict->size <= kLinearDict) {
    for (uint32_t i = 0; i < dict->size; ++i) {
      if (matches(i)) return &dict->entries[i].value;
    }
    return nullptr;
  }
  if (dict->index == nullptr) RETURN_IF_ERROR(MakeIndex(rt, dict));
  RETURN_IF_ERROR(rt.Bytes(static_cast<int64_t>(key.size())));
  ASSIGN_OR_RETURN(const int64_t found, Probe(rt, dict->index, dict->index_mask, HashText(key),
                                              [&](uint32_t entry) -> Result<bool> { return matches(entry); }));
  return found < 0 ? nullptr : &dict->entries[found].value;
}

Result<bool> DictBuilder::Set(const Value& key, const Value& value) {
  ASSIGN_OR_RETURN(const uint64_t hash, HashOf(rt_, key));
  if (entries_.size() * 2 >= slots_.size()) {
    const size_t capacity = slots_.empty() ? 16 : slots_.size() * 2;
    RETURN_IF_ERROR(rt_.Room(static_cast<int64_t>(capacity * (sizeof(DictEntry) + 4))));
    slots_.assign(capacity, 0);
    for (size_t i = 0; i < entries_.size(); ++i) {
      ASSIGN_OR_RETURN(const uint64_t h, HashOf(rt_, entries_[i].key));
      Insert(slots_.data(), capacity - 1, h, static_cast<uint32_t>(i));
    }
  }
  const uint64_t mask = slots_.size() - 1;
  ASSIGN_OR_RETURN(const int64_t found, Probe(rt_, slots_.data(), mask, hash,
                                              [&](uint32_t entry) { return Equal(rt_, entries_[entry].key, key); }));
  if (found >= 0) {
    entries_[static_cast<size_t>(found)].value = value;
    return false;
  }
  Insert(slots_.data(), mask, hash, static_cast<uint32_t>(entries_.size()));
  entries_.push_back({key, value});
  return true;
}

Result<Value> DictBuilder::Finish() {
  RETURN_IF_ERROR(rt_.Room(static_cast<int64_t>(entries_.size() * sizeof(DictEntry))));
  DictEntry* copy = rt_.arena.NewArray<DictEntry>(entries_.size());
  std::copy(entries_.begin(), entries_.end(), copy);
  return Value::Of(rt_.arena.New<Dict>(Dict{copy, static_cast<uint32_t>(entries_.size()), nullptr, 0}));
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
