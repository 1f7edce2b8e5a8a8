// The `loop` variable of a for block.
#pragma once

#include "base/status.h"
#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_value.h"

namespace cachalot::jinja {

struct ForStmt;
struct Activation;

struct Loop {
  Iterator* iterator = nullptr;
  Value iterable;
  int64_t index0 = -1;
  int64_t length = -1;  // -1: not asked for yet
  int64_t depth0 = 0;
  Value before, current, after;  // after: missing unless someone looked ahead
  Value last_changed;
  const ForStmt* recursive = nullptr;  // what calling the loop renders again …
  Activation* enclosing = nullptr;     // … and where

  // The next item; false at the end.
  Result<bool> Advance(Runtime& rt, Value* out);
  // Looks one item ahead; missing at the end.
  Result<Value> Peek(Runtime& rt);
  Result<int64_t> Length(Runtime& rt);
};

// `loop.index` and the like; missing when there is no such attribute.
Result<Value> LoopAttribute(Runtime& rt, Loop* loop, std::string_view name);

}  // namespace cachalot::jinja
