#include "tokenizer/chat/jinja/jinja_loop.h"

namespace cachalot::jinja {
namespace {

class OverItems final : public Iterator {
 public:
  OverItems(const Value* items, int64_t size) : items_(items), size_(size) {}
  Result<bool> Next(Runtime&, Value* out) override {
    if (next_ >= size_) return false;
    *out = items_[next_++];
    return true;
  }

 private:
  const Value* items_;
  int64_t size_;
  int64_t next_ = 0;
};

Value Hint(Runtime& rt, std::string_view hint) {
  return Value::Undefined(rt.arena.New<UndefinedInfo>(UndefinedInfo{hint, {}, {}}));
}

}  // namespace

Result<bool> Loop::Advance(Runtime& rt, Value* out) {
  if (!after.is_missing()) {
    *out = after;
    after = Value();
  } else {
    ASSIGN_OR_RETURN(const bool more, iterator->Next(rt, out));
    if (!more) return false;
  }
  ++index0;
  before = current;
  current = *out;
  return true;
}

Result<Value> Loop::Peek(Runtime& rt) {
  if (after.is_missing()) {
    Value next;
    ASSIGN_OR_RETURN(const bool more, iterator->Next(rt, &next));
    if (more) after = next;
  }
  return after;
}

Result<int64_t> Loop::Length(Runtime& rt) {
  if (length >= 0) return length;
  if (const std::optional<int64_t> known = LengthOf(iterable)) return length = *known;
  // What is left of an iterator is read ahead and kept.
  std::vector<Value> rest;
  Value item;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, iterator->Next(rt, &item));
    if (!more) break;
    RETURN_IF_ERROR(rt.Room(static_cast<int64_t>((rest.size() + 1) * sizeof(Value))));
    rest.push_back(item);
  }
  ASSIGN_OR_RETURN(Value * kept, rt.NewValues(static_cast<int64_t>(rest.size())));
  std::copy(rest.begin(), rest.end(), kept);
  iterator = rt.arena.New<OverItems>(kept, static_cast<int64_t>(rest.size()));
  return length = static_cast<int64_t>(rest.size()) + index0 + 1 + (after.is_missing() ? 0 : 1);
}

Result<Value> LoopAttribute(Runtime& rt, Loop* loop, std::string_view name) {
  if (name == "index") return Value::Integer(loop->index0 + 1);
  if (name == "index0") return Value::Integer(loop->index0);
  if (name == "first") return Value::Bool(loop->index0 == 0);
  if (name == "last") {
    ASSIGN_OR_RETURN(const Value next, loop->Peek(rt));
    return Value::Bool(next.is_missing());
  }
  if (name == "length") {
    ASSIGN_OR_RETURN(const int64_t n, loop->Length(rt));
    return Value::Integer(n);
  }
  if (name == "revindex" || name == "revindex0") {
    ASSIGN_OR_RETURN(const int64_t n, loop->Length(rt));
    return Value::Integer(n - loop->index0 - (name == "revindex" ? 0 : 1));
  }
  if (name == "depth") return Value::Integer(loop->depth0 + 1);
  if (name == "depth0") return Value::Integer(loop->depth0);
  if (name == "previtem") {
    if (loop->index0 == 0) return Hint(rt, "there is no previous item");
    return loop->before;
  }
  if (name == "nextitem") {
    ASSIGN_OR_RETURN(const Value next, loop->Peek(rt));
    return next.is_missing() ? Hint(rt, "there is no next item") : next;
  }
  return Value();
}

}  // namespace cachalot::jinja
