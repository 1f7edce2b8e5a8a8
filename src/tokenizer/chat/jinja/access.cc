#include "tokenizer/chat/jinja/access.h"

#include <algorithm>

#include "tokenizer/chat/jinja/dict.h"
#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_args.h"
#include "tokenizer/chat/jinja/jinja_compare.h"
#include "tokenizer/chat/jinja/jinja_loop.h"
#include "tokenizer/chat/jinja/jinja_macro.h"
#include "tokenizer/chat/jinja/jinja_strings.h"
#include "tokenizer/chat/jinja/methods.h"
#include "tokenizer/chat/jinja/numbers.h"
#include "tokenizer/chat/jinja/text_of.h"
#include "tokenizer/chat/jinja/text_ops.h"

namespace cachalot::jinja {
namespace {

Value UndefinedAttribute(Runtime& rt, const Value& object, std::string_view name) {
  return Value::Undefined(rt.arena.New<UndefinedInfo>(UndefinedInfo{{}, name, TypeName(object)}));
}

bool IsDunder(std::string_view name) {
  return name.starts_with("__") && name.ends_with("__");
}

Value NumberAttribute(const Value& v, std::string_view name) {
  if (name == "real") return v.is(Kind::kBool) ? Value::Integer(v.as_int()) : v;
  if (name == "imag") return v.is(Kind::kFloat) ? Value::Float(0) : Value::Integer(0);
  if (v.is_int_like() && name == "numerator") return Value::Integer(v.as_int());
  if (v.is_int_like() && name == "denominator") return Value::Integer(1);
  return Value();
}

// Attributes that are values, not methods.
Result<Value> DataAttribute(Runtime& rt, const Value& v, std::string_view name) {
  switch (v.kind) {
    case Kind::kNamespace: {
      const Namespace::Attr* attr = v.ns->Find(name);
      return attr != nullptr ? attr->value : Value();
    }
    case Kind::kLoop:
      return LoopAttribute(rt, v.loop, name);
    case Kind::kMacro:
      return MacroAttribute(rt, v.macro, name);
    case Kind::kTuple:
      if (v.seq->is_group && name == "grouper") return v.seq->items[0];
      if (v.seq->is_group && name == "list") return v.seq->items[1];
      return Value();
    case Kind::kRange:
      if (name == "start") return Value::Integer(v.range->start);
      if (name == "stop") return Value::Integer(v.range->stop);
      if (name == "step") return Value::Integer(v.range->step);
      return Value();
    case Kind::kCycler:
      if (name == "current") return v.cycler->items[v.cycler->pos];
      if (name == "pos") return Value::Integer(static_cast<Int>(v.cycler->pos));
      return Value();
    case Kind::kJoiner:
      if (name == "sep") return v.joiner->separator;
      if (name == "used") return Value::Bool(v.joiner->used);
      return Value();
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return NumberAttribute(v, name);
    default:
      return Value();
  }
}

// What the sandbox refuses to hand out.
Value Unsafe(Runtime& rt, const Value& object, std::string_view name) {
  const std::string hint =
      fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, TypeName(object));
  const Result<const String*> text = CopyText(rt, hint, false);
  return MakeUndefined(rt, text.ok() ? text.value()->view() : "unsafe attribute");
}

}  // namespace

Value MakeUndefined(Runtime& rt, std::string_view hint) {
  return Value::Undefined(rt.arena.New<UndefinedInfo>(UndefinedInfo{hint, {}, {}}));
}

Value UndefinedName(Runtime& rt, std::string_view name) {
  return Value::Undefined(rt.arena.New<UndefinedInfo>(UndefinedInfo{{}, name, {}}));
}

Result<Value> NativeAttribute(Runtime& rt, const Value& value, std::string_view name) {
  if (value.is_undefined()) return IsDunder(name) ? Result<Value>(Value()) : UndefinedError(value);
  ASSIGN_OR_RETURN(const Value data, DataAttribute(rt, value, name));
  if (!data.is_missing()) return data;
  if (IsForbiddenMethod(value, name) || (IsDunder(name) && !value.is(Kind::kNamespace)))
    return Unsafe(rt, value, name);
  const MethodFn method = FindMethod(value, name);
  if (method == nullptr) return Value();
  Value v = Value::Make(Kind::kMethod);
  v.method = rt.arena.New<Method>(Method{name, value, method});
  return v;
}

Result<Value> GetAttribute(Runtime& rt, const Value& value, std::string_view name) {
  if (value.is_dict()) {  // by far the commonest: no method, an item
    if (FindMethod(value, name) == nullptr && !IsForbiddenMethod(value, name) && !IsDunder(name)) {
      ASSIGN_OR_RETURN(const Value* item, DictFind(rt, value.dict, name));
      return item != nullptr ? *item : UndefinedAttribute(rt, value, name);
    }
  }
  ASSIGN_OR_RETURN(const Value native, NativeAttribute(rt, value, name));
  return native.is_missing() ? UndefinedAttribute(rt, value, name) : native;
}

Result<Value> GetItem(Runtime& rt, const Value& value, const Value& key) {
  if (value.is_undefined()) return UndefinedError(value);
  if (value.is_dict()) {
    const bool hashable = !key.is(Kind::kList) && !key.is_dict() && !key.is(Kind::kTuple);
    const Value* item = nullptr;
    if (hashable) {
      ASSIGN_OR_RETURN(item, DictFind(rt, value.dict, key));
    } else if (key.is(Kind::kTuple)) {
      const Result<const Value*> found = DictFind(rt, value.dict, key);
      if (found.ok()) item = *found;
    }
    if (item != nullptr) return *item;
  } else if (key.is_int_like() && (value.is_string() || value.is_list_or_tuple() || value.is(Kind::kRange))) {
    const int64_t length = *LengthOf(value);
    Int index = key.as_int();
    if (index < 0) index += length;
    if (index >= 0 && index < length) {
      if (value.is_string() && length != value.s->size) RETURN_IF_ERROR(rt.Bytes(value.s->size));
      return ItemAt(rt, value, static_cast<int64_t>(index));
    }
  }
  if (key.is_string()) {
    ASSIGN_OR_RETURN(const Value native, NativeAttribute(rt, value, key.s->view()));
    if (!native.is_missing()) return native;
    return UndefinedAttribute(rt, value, key.s->view());
  }
  ASSIGN_OR_RETURN(const String* text, ReprOf(rt, key));
  const std::string hint = fmt::format("{} object has no element {}", TypeName(value), text->view());
  ASSIGN_OR_RETURN(const String* kept, CopyText(rt, hint, false));
  return MakeUndefined(rt, kept->view());
}

Result<SliceRange> SliceIndices(const Value& start, const Value& stop, const Value& step, int64_t length) {
  int64_t stride = 1;
  if (!Absent(step)) {
    ASSIGN_OR_RETURN(stride, IndexArg("slice", step));
    if (stride == 0) return InvalidArgument("slice step cannot be zero");
  }
  const int64_t lowest = stride < 0 ? -1 : 0;
  const int64_t highest = stride < 0 ? length - 1 : length;
  const auto bound = [&](const Value& v, int64_t otherwise) -> Result<int64_t> {
    if (Absent(v)) return otherwise;
    ASSIGN_OR_RETURN(int64_t i, IndexArg("slice", v));
    if (i < 0) i += length;
    return std::clamp(i, lowest, highest);
  };
  ASSIGN_OR_RETURN(const int64_t from, bound(start, stride < 0 ? highest : lowest));
  ASSIGN_OR_RETURN(const int64_t to, bound(stop, stride < 0 ? lowest : highest));
  int64_t count = 0;
  if (stride > 0 && from < to) count = (to - from - 1) / stride + 1;
  if (stride < 0 && from > to) count = (from - to - 1) / -stride + 1;
  return SliceRange{from, to, stride, count};
}

Result<Value> GetSlice(Runtime& rt, const Value& value, const Value& start, const Value& stop,
                       const Value& step) {
  if (value.is_undefined()) return UndefinedError(value);
  if (!value.is_string() && !value.is_list_or_tuple() && !value.is(Kind::kRange)) {
    return value.is_dict() ? TypeError("unhashable type: 'slice'")
                           : TypeError("'{}' object is not subscriptable", TypeName(value));
  }
  ASSIGN_OR_RETURN(const SliceRange slice, SliceIndices(start, stop, step, *LengthOf(value)));
  if (value.is_string()) {
    ASSIGN_OR_RETURN(const String* s, PickChars(rt, value.s, slice.start, slice.step, slice.count));
    return Value::Str(s);
  }
  if (value.is(Kind::kRange)) {
    const Range& r = *value.range;
    const auto at = [&r](int64_t index) -> Result<Int> {
      ASSIGN_OR_RETURN(const Int offset, MulInt(r.step, index));
      return AddInt(r.start, offset);
    };
    ASSIGN_OR_RETURN(const Int first, at(slice.start));
    ASSIGN_OR_RETURN(const Int end, at(slice.stop));
    ASSIGN_OR_RETURN(const Int by, MulInt(r.step, slice.step));
    Value v = Value::Make(Kind::kRange);
    v.range = rt.arena.New<Range>(Range{first, end, by, slice.count});
    return v;
  }
  const Value* items = value.seq->items;
  if (slice.step == 1) {  // shared, since lists never change
    return Value::Seq(value.kind, rt.arena.New<Sequence>(Sequence{
                                      items + slice.start, static_cast<uint32_t>(slice.count), false}));
  }
  ASSIGN_OR_RETURN(Value * picked, rt.NewValues(slice.count));
  for (int64_t i = 0; i < slice.count; ++i) picked[i] = items[slice.start + i * slice.step];
  return Value::Seq(value.kind,
                    rt.arena.New<Sequence>(Sequence{picked, static_cast<uint32_t>(slice.count), false}));
}

}  // namespace cachalot::jinja
