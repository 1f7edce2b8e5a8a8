// Attributes, subscripts and slices, with the sandbox's rules.
#pragma once

#include <string_view>

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_runtime.h"
#include "tokenizer/chat/jinja/jinja_value.h"

namespace cachalot::jinja {

// value.name: an attribute or method, else an item of that name, else undefined. `name` must outlive the
// render.
Result<Value> GetAttribute(Runtime& rt, const Value& value, std::string_view name);
// The attribute or method only: missing when the object has none (the `attr` filter).
Result<Value> NativeAttribute(Runtime& rt, const Value& value, std::string_view name);
// value[key]: an item, else an attribute of that name, else undefined.
Result<Value> GetItem(Runtime& rt, const Value& value, const Value& key);
// value[start:stop:step]; a missing or None bound is left out.
Result<Value> GetSlice(Runtime& rt, const Value& value, const Value& start, const Value& stop,
                       const Value& step);

// Python's slice.indices, and how many there are.
struct SliceRange {
  int64_t start, stop, step, count;
};
Result<SliceRange> SliceIndices(const Value& start, const Value& stop, const Value& step, int64_t length);

Value MakeUndefined(Runtime& rt, std::string_view hint);
Value UndefinedName(Runtime& rt, std::string_view name);

}  // namespace cachalot::jinja
