// Values of the template language, with Python's semantics: small copies that point into the arena of one
// render. Invariant: everything but namespaces, loops, iterators, cyclers and joiners is immutable after it
// was made, and a string knows which of its bytes came from the request.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace cachalot::jinja {

// Python's integers are unbounded; 127 bits cover every 64-bit value of a JSON schema, and overflow is an
// error.
__extension__ typedef __int128 Int;

struct Value;
class Iterator;
struct Macro;
struct Loop;

enum class Kind : uint8_t {
  kMissing,  // a variable that was never assigned; never seen by templates
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kRange,
  kView,
  kIterator,
  kNamespace,
  kMacro,
  kBuiltin,
  kMethod,
  kLoop,
  kCycler,
  kJoiner,
};

struct ByteRange {
  uint32_t begin, end;
};

// UTF-8 text. `ranges`: the bytes that came from the request, sorted, disjoint, not touching each other.
struct String {
  const char* data;
  uint32_t size;
  uint32_t num_ranges;
  const ByteRange* ranges;
  mutable int64_t num_chars;  // -1: not counted yet
  bool markup;  // jinja2's Markup: `safe` and `escape` make it, and it escapes what is added to it

  std::string_view view() const { return {data, size}; }
  std::span<const ByteRange> user() const { return {ranges, num_ranges}; }
};

struct Sequence {
  const Value* items;
  uint32_t size;
  bool is_group;  // groupby's named tuple: .grouper and .list
};

struct DictEntry;
struct Dict {
  const DictEntry* entries;
  uint32_t size;
  mutable const uint32_t* index;  // open addressing over entries, made at the first look-up in a large dict
  mutable uint32_t index_mask;
};

struct Range {
  Int start, stop, step;
  int64_t size;
};

enum class ViewKind : uint8_t { kItems, kKeys, kValues };
struct View {
  ViewKind kind;
  const Dict* dict;
};

struct UndefinedInfo {
  std::string_view hint;      // the whole message, or
  std::string_view name;      // the variable, attribute or element …
  std::string_view obj_type;  // … and the type of what lacks it
};

struct Namespace;
struct Builtin;
struct Method;
struct Cycler;
struct Joiner;

struct Value {
  Kind kind = Kind::kMissing;
  bool from_user = false;  // of scalars: their text counts as the request's (strings know their ranges)
  union {
    Int i = 0;
    bool b;
    double f;
    const String* s;
    const Sequence* seq;
    const Dict* dict;
    const Range* range;
    const View* view;
    Iterator* iter;
    Namespace* ns;
    const Macro* macro;
    const Builtin* builtin;
    const Method* method;
    Loop* loop;
    Cycler* cycler;
    Joiner* joiner;
    const UndefinedInfo* undefined;
  };

  static Value None() { return Make(Kind::kNone); }
  static Value Bool(bool b) {
    Value v = Make(Kind::kBool);
    v.b = b;
    return v;
  }
  static Value Integer(Int i) {
    Value v = Make(Kind::kInt);
    v.i = i;
    return v;
  }
  static Value Float(double f) {
    Value v = Make(Kind::kFloat);
    v.f = f;
    return v;
  }
  static Value Str(const String* s) {
    Value v = Make(Kind::kString);
    v.s = s;
    return v;
  }
  static Value Seq(Kind kind, const Sequence* seq) {
    Value v = Make(kind);
    v.seq = seq;
    return v;
  }
  static Value Of(const Dict* dict) {
    Value v = Make(Kind::kDict);
    v.dict = dict;
    return v;
  }
  static Value Of(Iterator* iter) {
    Value v = Make(Kind::kIterator);
    v.iter = iter;
    return v;
  }
  static Value Undefined(const UndefinedInfo* info) {
    Value v = Make(Kind::kUndefined);
    v.undefined = info;
    return v;
  }
  static Value Make(Kind kind) {
    Value v;
    v.kind = kind;
    return v;
  }

  bool is(Kind k) const { return kind == k; }
  bool is_missing() const { return kind == Kind::kMissing; }
  bool is_undefined() const { return kind == Kind::kUndefined; }
  bool is_none() const { return kind == Kind::kNone; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_dict() const { return kind == Kind::kDict; }
  bool is_list_or_tuple() const { return kind == Kind::kList || kind == Kind::kTuple; }
  // Python's int, of which bool is a subclass.
  bool is_int_like() const { return kind == Kind::kInt || kind == Kind::kBool; }
  bool is_number() const { return is_int_like() || kind == Kind::kFloat; }
  Int as_int() const { return kind == Kind::kBool ? Int{b} : i; }
  double as_double() const { return kind == Kind::kFloat ? f : static_cast<double>(as_int()); }
  std::span<const Value> items() const;
  Value WithUser(bool user) const {
    Value v = *this;
    v.from_user = v.from_user || user;
    return v;
  }
};

struct DictEntry {
  Value key, value;
};

// Attributes in the order of their first assignment.
struct Namespace {
  struct Attr {
    std::string_view name;
    Value key, value;
    Attr* next;
  };
  Attr* first = nullptr;
  Attr* last = nullptr;
  uint32_t size = 0;

  Attr* Find(std::string_view name) const {
    for (Attr* a = first; a != nullptr; a = a->next) {
      if (a->name == name) return a;
    }
    return nullptr;
  }
};

struct Cycler {
  std::span<const Value> items;
  size_t pos;
};

struct Joiner {
  Value separator;
  bool used;
};

inline std::span<const Value> Value::items() const {
  return {seq->items, seq->size};
}

}  // namespace cachalot::jinja
