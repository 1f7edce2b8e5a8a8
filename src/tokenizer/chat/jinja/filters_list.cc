// Filters on sequences and dicts that give their result at once.
#include "tokenizer/chat/jinja/access.h"
#include "tokenizer/chat/jinja/arithmetic.h"
#include "tokenizer/chat/jinja/filters.h"
#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_args.h"
#include "tokenizer/chat/jinja/jinja_loop.h"
#include "tokenizer/chat/jinja/jinja_sort.h"
#include "tokenizer/chat/jinja/jinja_strings.h"
#include "tokenizer/chat/jinja/text_ops.h"

namespace cachalot::jinja {
namespace {

Result<Value> Length(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("length", args));
  if (input.is(Kind::kLoop)) {
    ASSIGN_OR_RETURN(const int64_t n, input.loop->Length(rt));
    return Value::Integer(n);
  }
  const std::optional<int64_t> n = LengthOf(input);
  if (!n) return TypeError("object of type '{}' has no len()", TypeName(input));
  return Value::Integer(*n);
}

Result<Value> First(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("first", args));
  ASSIGN_OR_RETURN(Iterator * iterator, MakeIterator(rt, input));
  Value item;
  ASSIGN_OR_RETURN(const bool more, iterator->Next(rt, &item));
  return more ? item : MakeUndefined(rt, "No first item, sequence was empty.");
}

Result<Value> Last(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("last", args));
  ASSIGN_OR_RETURN(const std::optional<Value> reversed, MakeReversed(rt, input));
  if (!reversed) return TypeError("'{}' object is not reversible", TypeName(input));
  Value item;
  ASSIGN_OR_RETURN(const bool more, reversed->iter->Next(rt, &item));
  return more ? item : MakeUndefined(rt, "No last item, sequence was empty.");
}

Result<Value> List(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("list", args));
  ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(rt, input));
  return MakeSequence(rt, Kind::kList, items);
}

Result<Value> Reverse(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("reverse", args));
  if (input.is_string()) {
    ASSIGN_OR_RETURN(const String* s, ReverseText(rt, input.s));
    return Value::Str(s);
  }
  ASSIGN_OR_RETURN(const std::optional<Value> reversed, MakeReversed(rt, input));
  if (reversed) return *reversed;
  if (!IsIterable(input)) return TypeError("argument must be iterable");
  ASSIGN_OR_RETURN(std::vector<Value> items, ItemsOf(rt, input));
  std::reverse(items.begin(), items.end());
  return MakeSequence(rt, Kind::kList, items);
}

struct Keyed {
  Value key, item;
};

Status SortKeyed(Runtime& rt, std::vector<Keyed>* keyed, bool reverse) {
  const auto less = [&](const Keyed& x, const Keyed& y) -> Result<bool> {
    RETURN_IF_ERROR(rt.Step());
    return InOrder(rt, Order::kLess, x.key, y.key);
  };
  return StableSort(keyed, less, reverse);
}

// Sorts by keys, which are lists when `attribute` names several.
Result<Value> Sort(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("sort", {"reverse", "case_sensitive", "attribute"}, 0, args));
  std::vector<AttributePath> paths;
  if (a[2].is_string()) {
    ASSIGN_OR_RETURN(const std::vector<Value> names, SplitText(rt, a[2].s, BorrowText(rt, ",", false), -1));
    for (const Value& name : names) {
      ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Make(rt, name));
      paths.push_back(path);
    }
  } else {
    ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Make(rt, a[2]));
    paths.push_back(path);
  }
  ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(rt, input));
  RETURN_IF_ERROR(rt.Room(static_cast<int64_t>(items.size() * 2 * sizeof(Keyed))));
  std::vector<Keyed> keyed;
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(Value * keys, rt.NewValues(static_cast<int64_t>(paths.size())));
    for (size_t i = 0; i < paths.size(); ++i) {
      ASSIGN_OR_RETURN(keys[i], paths[i].Get(rt, item));
      if (!Truth(a[1])) {
        ASSIGN_OR_RETURN(keys[i], IgnoreCase(rt, keys[i]));
      }
    }
    ASSIGN_OR_RETURN(const Value key, MakeSequence(rt, Kind::kList, {keys, paths.size()}));
    keyed.push_back({key, item});
  }
  RETURN_IF_ERROR(SortKeyed(rt, &keyed, Truth(a[0])));
  ASSIGN_OR_RETURN(Value * sorted, rt.NewValues(static_cast<int64_t>(keyed.size())));
  for (size_t i = 0; i < keyed.size(); ++i) sorted[i] = keyed[i].item;
  return MakeSequence(rt, Kind::kList, {sorted, keyed.size()});
}

Result<Value> DictSort(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("dictsort", {"case_sensitive", "by", "reverse"}, 0, args));
  bool by_value = false;
  if (Given(a[1])) {
    by_value = a[1].is_string() && a[1].s->view() == "value";
    if (!by_value && !(a[1].is_string() && a[1].s->view() == "key")) {
      return InvalidArgument("you can only sort by either \"key\" or \"value\"");
    }
  }
  if (input.is_undefined()) return UndefinedError(input);
  if (!input.is_dict()) return TypeError("'{}' object has no attribute 'items'", TypeName(input));
  std::vector<Keyed> keyed;
  for (uint32_t i = 0; i < input.dict->size; ++i) {
    const DictEntry& entry = input.dict->entries[i];
    Value key = by_value ? entry.value : entry.key;
    if (!Truth(a[0])) {
      ASSIGN_OR_RETURN(key, IgnoreCase(rt, key));
    }
    const Value pair[2] = {entry.key, entry.value};
    ASSIGN_OR_RETURN(const Value tuple, MakeSequence(rt, Kind::kTuple, pair));
    keyed.push_back({key, tuple});
  }
  RETURN_IF_ERROR(SortKeyed(rt, &keyed, Truth(a[2])));
  std::vector<Value> sorted;
  for (const Keyed& k : keyed) sorted.push_back(k.item);
  return MakeSequence(rt, Kind::kList, sorted);
}

template <bool kMax>
Result<Value> Extreme(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind(kMax ? "max" : "min", {"case_sensitive", "attribute"}, 0, args));
  ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Make(rt, a[1]));
  ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(rt, input));
  if (items.empty()) return MakeUndefined(rt, "No aggregated item, sequence was empty.");
  const Value* best = nullptr;
  Value best_key;
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(Value key, path.Get(rt, item));
    if (!Truth(a[0])) {
      ASSIGN_OR_RETURN(key, IgnoreCase(rt, key));
    }
    if (best != nullptr) {
      ASSIGN_OR_RETURN(const bool better, InOrder(rt, kMax ? Order::kGreater : Order::kLess, key, best_key));
      if (!better) continue;
    }
    best = &item;
    best_key = key;
  }
  return *best;
}

Result<Value> Sum(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("sum", {"attribute", "start"}, 0, args));
  ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Make(rt, a[0]));
  Value total = Given(a[1]) ? a[1] : Value::Integer(0);
  if (total.is_string()) return TypeError("sum() can't sum strings");
  ASSIGN_OR_RETURN(Iterator * iterator, MakeIterator(rt, input));
  Value item;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, iterator->Next(rt, &item));
    if (!more) return total;
    ASSIGN_OR_RETURN(const Value value, path.Get(rt, item));
    ASSIGN_OR_RETURN(total, Arithmetic(rt, BinaryOp::kAdd, total, value));
  }
}

Result<Value> GroupBy(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("groupby", {"attribute", "default", "case_sensitive"}, 1, args));
  ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Make(rt, a[0]));
  ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(rt, input));
  std::vector<Keyed> keyed;
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(Value key, path.Get(rt, item, a[1]));
    if (!Truth(a[2])) {
      ASSIGN_OR_RETURN(key, IgnoreCase(rt, key));
    }
    RETURN_IF_ERROR(rt.Room(static_cast<int64_t>((keyed.size() + 1) * 2 * sizeof(Keyed))));
    keyed.push_back({key, item});
  }
  RETURN_IF_ERROR(SortKeyed(rt, &keyed, false));
  std::vector<Value> groups;
  for (size_t begin = 0; begin < keyed.size();) {
    std::vector<Value> members;
    size_t end = begin;
    for (; end < keyed.size(); ++end) {
      ASSIGN_OR_RETURN(const bool same, Equal(rt, keyed[begin].key, keyed[end].key));
      if (!same) break;
      members.push_back(keyed[end].item);
    }
    Value* group = rt.arena.NewArray<Value>(2);
    // The key as it is written in the first member.
    ASSIGN_OR_RETURN(group[0], path.Get(rt, keyed[begin].item, a[1]));
    ASSIGN_OR_RETURN(group[1], MakeSequence(rt, Kind::kList, members));
    groups.push_back(Value::Seq(Kind::kTuple, rt.arena.New<Sequence>(Sequence{group, 2, true})));
    begin = end;
  }
  return MakeSequence(rt, Kind::kList, groups);
}

Result<Value> Default(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("default", {"default_value", "boolean"}, 0, args));
  if (!input.is_undefined() && !(Truth(a[1]) && !Truth(input))) return input;
  return Given(a[0]) ? a[0] : Value::Str(BorrowText(rt, "", false));
}

Result<Value> Attr(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("attr", {"name"}, 1, args));
  ASSIGN_OR_RETURN(const String* name, TextArg("attr", a[0]));
  ASSIGN_OR_RETURN(const Value value, NativeAttribute(rt, input, name->view()));
  return value.is_missing() ? UndefinedName(rt, name->view()) : value;
}

constexpr FilterEntry kFilters[] = {
    {"attr", Attr},         {"count", Length}, {"d", Default},         {"default", Default},
    {"dictsort", DictSort}, {"first", First},  {"groupby", GroupBy},   {"last", Last},
    {"length", Length},     {"list", List},    {"max", Extreme<true>}, {"min", Extreme<false>},
    {"reverse", Reverse},   {"sort", Sort},    {"sum", Sum},
};

}  // namespace

std::span<const FilterEntry> ListFilters() {
  return kFilters;
}

}  // namespace cachalot::jinja
