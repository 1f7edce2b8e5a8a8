#include "tokenizer/chat/jinja/methods.h"

#include <algorithm>
#include <cmath>

#include "tokenizer/chat/jinja/access.h"
#include "tokenizer/chat/jinja/dict.h"
#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_args.h"
#include "tokenizer/chat/jinja/jinja_loop.h"
#include "tokenizer/chat/jinja/numbers.h"

namespace cachalot::jinja {
namespace {

template <ViewKind kKind>
Result<Value> DictView(Runtime& rt, const Value& self, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("dict view", args));
  Value v = Value::Make(Kind::kView);
  v.view = rt.arena.New<View>(View{kKind, self.dict});
  return v;
}

Result<Value> DictGet(Runtime& rt, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("get", {"", ""}, 1, args));
  ASSIGN_OR_RETURN(const Value* found, DictFind(rt, self.dict, a[0]));
  if (found != nullptr) return *found;
  return Given(a[1]) ? a[1] : Value::None();
}

Result<Value> Copy(Runtime&, const Value& self, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("copy", args));
  return self;
}

Result<Value> SequenceCount(Runtime& rt, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("count", {""}, 1, args));
  Int count = 0;
  for (int64_t i = 0, n = *LengthOf(self); i < n; ++i) {
    RETURN_IF_ERROR(rt.Step());
    ASSIGN_OR_RETURN(const bool same, Equal(rt, ItemAt(rt, self, i), a[0]));
    count += same;
  }
  return Value::Integer(count);
}

Result<Value> SequenceIndex(Runtime& rt, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("index", {"", "", ""}, 1, args));
  const int64_t length = *LengthOf(self);
  ASSIGN_OR_RETURN(const SliceRange window, SliceIndices(a[1], a[2], Value(), length));
  for (int64_t i = window.start; i < window.start + window.count; ++i) {
    RETURN_IF_ERROR(rt.Step());
    ASSIGN_OR_RETURN(const bool same, Equal(rt, ItemAt(rt, self, i), a[0]));
    if (same) return Value::Integer(i);
  }
  return InvalidArgument("the value is not in the {}", TypeName(self));
}

Result<Value> LoopCycle(Runtime&, const Value& self, const Args& args) {
  if (!args.keywords.empty()) return TypeError("cycle() got an unexpected keyword argument");
  if (args.positional.empty()) return TypeError("no items for cycling given");
  return args.positional[static_cast<size_t>(self.loop->index0) % args.positional.size()];
}

Result<Value> LoopChanged(Runtime& rt, const Value& self, const Args& args) {
  if (!args.keywords.empty()) return TypeError("changed() got an unexpected keyword argument");
  ASSIGN_OR_RETURN(const Value now, MakeSequence(rt, Kind::kTuple, args.positional));
  ASSIGN_OR_RETURN(const bool same, Equal(rt, now, self.loop->last_changed));
  self.loop->last_changed = now;
  return Value::Bool(!same);
}

Result<Value> CyclerNext(Runtime&, const Value& self, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("next", args));
  const Value now = self.cycler->items[self.cycler->pos];
  self.cycler->pos = (self.cycler->pos + 1) % self.cycler->items.size();
  return now;
}

Result<Value> CyclerReset(Runtime&, const Value& self, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("reset", args));
  self.cycler->pos = 0;
  return Value::None();
}

Result<Value> IsInteger(Runtime&, const Value& self, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("is_integer", args));
  return Value::Bool(std::isfinite(self.f) && std::floor(self.f) == self.f);
}

Result<Value> BitLength(Runtime&, const Value& self, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("bit_length", args));
  return Value::Integer(self.as_int() == 0 ? 0 : static_cast<Int>(FormatMagnitude(self.as_int(), 2).size()));
}

constexpr MethodEntry kDictMethods[] = {{"copy", Copy},
                                        {"get", DictGet},
                                        {"items", DictView<ViewKind::kItems>},
                                        {"keys", DictView<ViewKind::kKeys>},
                                        {"values", DictView<ViewKind::kValues>}};
constexpr MethodEntry kListMethods[] = {{"copy", Copy}, {"count", SequenceCount}, {"index", SequenceIndex}};
constexpr MethodEntry kTupleMethods[] = {{"count", SequenceCount}, {"index", SequenceIndex}};
constexpr MethodEntry kLoopMethods[] = {{"changed", LoopChanged}, {"cycle", LoopCycle}};
constexpr MethodEntry kCyclerMethods[] = {{"next", CyclerNext}, {"reset", CyclerReset}};
constexpr MethodEntry kFloatMethods[] = {{"is_integer", IsInteger}};
constexpr MethodEntry kIntMethods[] = {{"bit_length", BitLength}};

constexpr std::string_view kForbiddenInDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kForbiddenInList[] = {"append", "clear", "pop",    "reverse",
                                                 "insert", "sort",  "extend", "remove"};

template <size_t N>
MethodFn Among(const MethodEntry (&entries)[N], std::string_view name) {
  for (const MethodEntry& e : entries) {
    if (e.name == name) return e.call;
  }
  return nullptr;
}

}  // namespace

MethodFn FindMethod(const Value& self, std::string_view name) {
  switch (self.kind) {
    case Kind::kString:
      return FindStringMethod(name);
    case Kind::kDict:
      return Among(kDictMethods, name);
    case Kind::kList:
      return Among(kListMethods, name);
    case Kind::kTuple:
    case Kind::kRange:
      return Among(kTupleMethods, name);
    case Kind::kLoop:
      return Among(kLoopMethods, name);
    case Kind::kCycler:
      return Among(kCyclerMethods, name);
    case Kind::kFloat:
      return Among(kFloatMethods, name);
    case Kind::kBool:
    case Kind::kInt:
      return Among(kIntMethods, name);
    default:
      return nullptr;
  }
}

bool IsForbiddenMethod(const Value& self, std::string_view name) {
  const auto among = [&](auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if (self.is_dict()) return among(kForbiddenInDict);
  if (self.is(Kind::kList)) return among(kForbiddenInList);
  return false;
}

}  // namespace cachalot::jinja
