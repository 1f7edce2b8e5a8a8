// Going through values: iter(), list(), len(), and lists made anew.
#pragma once

#include <optional>
#include <vector>

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_runtime.h"
#include "tokenizer/chat/jinja/jinja_value.h"

namespace cachalot::jinja {

// A Python iterator: it runs once, lazily. Lives in the arena.
class Iterator {
 public:
  // False at the end (and then for ever).
  virtual Result<bool> Next(Runtime& rt, Value* out) = 0;
  // Nesting of iterators over iterators, bounded when they are made.
  int depth = 0;

 protected:
  ~Iterator() = default;
};

bool IsIterable(const Value& value);
// iter(value); an iterator gives itself.
Result<Iterator*> MakeIterator(Runtime& rt, const Value& value);
// What is kept of an iterator that wraps `source`; an error when the nesting gets too deep.
template <typename T>
Result<Value> WrapIterator(Runtime& rt, T iterator, const Iterator* source) {
  iterator.depth = source == nullptr ? 1 : source->depth + 1;
  if (iterator.depth > rt.limits().max_depth) {
    return Exhausted("iterators are nested deeper than {}", rt.limits().max_depth);
  }
  return Value::Of(static_cast<Iterator*>(rt.arena.New<T>(iterator)));
}
// reversed(value): an iterator, or nothing when the value cannot be reversed.
Result<std::optional<Value>> MakeReversed(Runtime& rt, const Value& value);

// len(value), nothing when it has none.
std::optional<int64_t> LengthOf(const Value& value);
// All items.
Result<std::vector<Value>> ItemsOf(Runtime& rt, const Value& value);
Result<Value> MakeSequence(Runtime& rt, Kind kind, std::span<const Value> items);
// The item number `index` of a string, list, tuple or range.
Value ItemAt(Runtime& rt, const Value& value, int64_t index);

}  // namespace cachalot::jinja
