// Filters that give Python generators: nothing happens before the first item is asked for, and they run once.
#include <algorithm>

#include "tokenizer/chat/jinja/dict.h"
#include "tokenizer/chat/jinja/filters.h"
#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_args.h"
#include "tokenizer/chat/jinja/jinja_strings.h"
#include "tokenizer/chat/jinja/jinja_tests.h"

namespace cachalot::jinja {
namespace {

// The arguments, kept beyond the call.
Result<Args> Keep(Runtime& rt, const Args& args) {
  ASSIGN_OR_RETURN(Value * positional, rt.NewValues(static_cast<int64_t>(args.positional.size())));
  std::copy(args.positional.begin(), args.positional.end(), positional);
  RETURN_IF_ERROR(rt.Room(static_cast<int64_t>(args.keywords.size_bytes())));
  Keyword* keywords = rt.arena.NewArray<Keyword>(args.keywords.size());
  std::copy(args.keywords.begin(), args.keywords.end(), keywords);
  return Args{{positional, args.positional.size()}, {keywords, args.keywords.size()}};
}

const Iterator* SourceOf(const Value& input) {
  return input.is(Kind::kIterator) ? input.iter : nullptr;
}

class MapIterator final : public Iterator {
 public:
  MapIterator(const Value& input, const Args& args) : input_(input), args_(args) {}

  Result<bool> Next(Runtime& rt, Value* out) override {
    if (!started_) {
      started_ = true;
      if (Truth(input_)) {
        RETURN_IF_ERROR(Prepare(rt));
        ASSIGN_OR_RETURN(source_, MakeIterator(rt, input_));
      }
    }
    if (source_ == nullptr) return false;
    RETURN_IF_ERROR(rt.Step());
    Value item;
    ASSIGN_OR_RETURN(const bool more, source_->Next(rt, &item));
    if (!more) return false;
    if (filter_ != nullptr) {
      ASSIGN_OR_RETURN(*out, filter_->apply(rt, item, args_));
    } else {
      ASSIGN_OR_RETURN(*out, path_.Get(rt, item, otherwise_));
    }
    return true;
  }

 private:
  Status Prepare(Runtime& rt) {
    const Keyword* attribute = nullptr;
    for (const Keyword& k : args_.keywords) {
      if (k.name == "attribute") attribute = &k;
    }
    if (args_.positional.empty() && attribute != nullptr) {
      for (const Keyword& k : args_.keywords) {
        if (k.name == "default")
          otherwise_ = k.value;
        else if (&k != attribute)
          return InvalidArgument("map: unexpected keyword argument '{}'", k.name);
      }
      ASSIGN_OR_RETURN(path_, AttributePath::Make(rt, attribute->value));
      return Status::Ok();
    }
    if (args_.positional.empty()) return InvalidArgument("map requires a filter argument");
    const Value& name = args_.positional[0];
    filter_ = name.is_string() ? FindFilter(name.s->view()) : nullptr;
    if (filter_ == nullptr) return InvalidArgument("map: no such filter");
    args_.positional = args_.positional.subspan(1);
    return Status::Ok();
  }

  Value input_;
  Args args_;
  bool started_ = false;
  Iterator* source_ = nullptr;
  const FilterEntry* filter_ = nullptr;
  AttributePath path_;
  Value otherwise_;
};

class SelectIterator final : public Iterator {
 public:
  SelectIterator(const Value& input, const Args& args, bool by_attribute, bool wanted)
      : input_(input), args_(args), by_attribute_(by_attribute), wanted_(wanted) {}

  Result<bool> Next(Runtime& rt, Value* out) override {
    if (!started_) {
      started_ = true;
      if (Truth(input_)) {
        RETURN_IF_ERROR(Prepare(rt));
        ASSIGN_OR_RETURN(source_, MakeIterator(rt, input_));
      }
    }
    if (source_ == nullptr) return false;
    for (;;) {
      RETURN_IF_ERROR(rt.Step());
      Value item;
      ASSIGN_OR_RETURN(const bool more, source_->Next(rt, &item));
      if (!more) return false;
      ASSIGN_OR_RETURN(const Value value, path_.Get(rt, item));
      bool holds = false;
      if (test_ != nullptr) {
        ASSIGN_OR_RETURN(holds, test_->holds(rt, value, args_));
      } else {
        holds = Truth(value);
      }
      if (holds != wanted_) continue;
      *out = item;
      return true;
    }
  }

 private:
  Status Prepare(Runtime& rt) {
    if (by_attribute_) {
      if (args_.positional.empty()) return InvalidArgument("missing parameter for attribute name");
      ASSIGN_OR_RETURN(path_, AttributePath::Make(rt, args_.positional[0]));
      args_.positional = args_.positional.subspan(1);
    }
    if (args_.positional.empty()) return Status::Ok();
    const Value& name = args_.positional[0];
    test_ = name.is_string() ? FindTest(name.s->view()) : nullptr;
    if (test_ == nullptr) return InvalidArgument("select: no such test");
    args_.positional = args_.positional.subspan(1);
    return Status::Ok();
  }

  Value input_;
  Args args_;
  bool by_attribute_;
  bool wanted_;
  bool started_ = false;
  Iterator* source_ = nullptr;
  const TestEntry* test_ = nullptr;
  AttributePath path_;
};

Result<Value> Map(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Args kept, Keep(rt, args));
  return WrapIterator(rt, MapIterator(input, kept), SourceOf(input));
}

template <bool kByAttribute, bool kWanted>
Result<Value> Select(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Args kept, Keep(rt, args));
  return WrapIterator(rt, SelectIterator(input, kept, kByAttribute, kWanted), SourceOf(input));
}

// A generator whose items are all worked out when the first is asked for.
using ComputeFn = Result<std::vector<Value>> (*)(Runtime& rt, const Value& input, const Value* args);
constexpr size_t kMaxArgs = 2;

class ComputedIterator final : public Iterator {
 public:
  ComputedIterator(ComputeFn compute, const Value& input, const Value* args, size_t num_args)
      : compute_(compute), input_(input) {
    std::copy(args, args + num_args, args_);
  }

  Result<bool> Next(Runtime& rt, Value* out) override {
    if (compute_ != nullptr) {
      const ComputeFn compute = std::exchange(compute_, nullptr);
      ASSIGN_OR_RETURN(const std::vector<Value> items, compute(rt, input_, args_));
      ASSIGN_OR_RETURN(const Value list, MakeSequence(rt, Kind::kList, items));
      items_ = list.items();
    }
    if (next_ >= items_.size()) return false;
    *out = items_[next_++];
    return true;
  }

 private:
  ComputeFn compute_;
  Value input_;
  Value args_[kMaxArgs];
  std::span<const Value> items_;
  size_t next_ = 0;
};

template <size_t N>
Result<Value> Computed(Runtime& rt, ComputeFn compute, const Value& input, const std::array<Value, N>& args) {
  static_assert(N <= kMaxArgs);
  return WrapIterator(rt, ComputedIterator(compute, input, args.data(), N), SourceOf(input));
}

Result<Value> Items(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("items", args));
  const ComputeFn compute = [](Runtime& r, const Value& value, const Value*) -> Result<std::vector<Value>> {
    if (value.is_undefined()) return std::vector<Value>();
    if (!value.is_dict()) return TypeError("Can only get item pairs from a mapping.");
    Value view = Value::Make(Kind::kView);
    view.view = r.arena.New<View>(View{ViewKind::kItems, value.dict});
    return ItemsOf(r, view);
  };
  return Computed(rt, compute, input, std::array<Value, 1>());
}

Result<Value> Unique(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("unique", {"case_sensitive", "attribute"}, 0, args));
  const ComputeFn compute = [](Runtime& r, const Value& value,
                               const Value* arg) -> Result<std::vector<Value>> {
    ASSIGN_OR_RETURN(const AttributePath path, AttributePath::Make(r, arg[1]));
    ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(r, value));
    DictBuilder seen(r);
    std::vector<Value> out;
    for (const Value& item : items) {
      ASSIGN_OR_RETURN(Value key, path.Get(r, item));
      if (!Truth(arg[0])) {
        ASSIGN_OR_RETURN(key, IgnoreCase(r, key));
      }
      ASSIGN_OR_RETURN(const bool fresh, seen.Set(key, Value::None()));
      if (fresh) out.push_back(item);
    }
    return out;
  };
  return Computed(rt, compute, input, a);
}

Result<Value> Batch(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("batch", {"linecount", "fill_with"}, 1, args));
  const ComputeFn compute = [](Runtime& r, const Value& value,
                               const Value* arg) -> Result<std::vector<Value>> {
    ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(r, value));
    std::vector<Value> out;
    std::vector<Value> row;
    const auto flush = [&]() -> Status {
      ASSIGN_OR_RETURN(const Value list, MakeSequence(r, Kind::kList, row));
      out.push_back(list);
      row.clear();
      return Status::Ok();
    };
    for (const Value& item : items) {
      ASSIGN_OR_RETURN(const bool full, Equal(r, Value::Integer(static_cast<Int>(row.size())), arg[0]));
      if (full) RETURN_IF_ERROR(flush());
      row.push_back(item);
    }
    if (row.empty()) return out;
    if (!Absent(arg[1])) {
      ASSIGN_OR_RETURN(const int64_t width, IndexArg("batch", arg[0]));
      constexpr int64_t kWidest = 1 << 24;
      if (width > kWidest) return Exhausted("batch: a row of {} is longer than {}", width, kWidest);
      RETURN_IF_ERROR(r.Room(std::max<int64_t>(width, 0) * static_cast<int64_t>(sizeof(Value))));
      while (static_cast<int64_t>(row.size()) < width) row.push_back(arg[1]);
    }
    RETURN_IF_ERROR(flush());
    return out;
  };
  return Computed(rt, compute, input, a);
}

Result<Value> SliceFilter(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("slice", {"slices", "fill_with"}, 1, args));
  const ComputeFn compute = [](Runtime& r, const Value& value,
                               const Value* arg) -> Result<std::vector<Value>> {
    ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(r, value));
    ASSIGN_OR_RETURN(const int64_t slices, IndexArg("slice", arg[0]));
    if (slices == 0) return InvalidArgument("integer division or modulo by zero");
    std::vector<Value> out;
    if (slices < 0) return out;
    RETURN_IF_ERROR(r.Room(slices <= (int64_t{1} << 32) ? slices * 64 : int64_t{1} << 62));
    const auto n = static_cast<int64_t>(items.size());
    const int64_t longer = n % slices;
    int64_t begin = 0;
    for (int64_t i = 0; i < slices; ++i) {
      RETURN_IF_ERROR(r.Step());
      const int64_t size = n / slices + (i < longer);
      std::vector<Value> part(items.begin() + begin, items.begin() + begin + size);
      if (!Absent(arg[1]) && i >= longer) part.push_back(arg[1]);
      ASSIGN_OR_RETURN(const Value list, MakeSequence(r, Kind::kList, part));
      out.push_back(list);
      begin += size;
    }
    return out;
  };
  return Computed(rt, compute, input, a);
}

constexpr FilterEntry kFilters[] = {
    {"batch", Batch},
    {"items", Items},
    {"map", Map},
    {"reject", Select<false, false>},
    {"rejectattr", Select<true, false>},
    {"select", Select<false, true>},
    {"selectattr", Select<true, true>},
    {"slice", SliceFilter},
    {"unique", Unique},
};

}  // namespace

std::span<const FilterEntry> LazyFilters() {
  return kFilters;
}

}  // namespace cachalot::jinja
