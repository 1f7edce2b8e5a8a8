// + - * / // % ** and the signs, on numbers, strings and lists.
#pragma once

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_runtime.h"
#include "tokenizer/chat/jinja/jinja_value.h"

namespace cachalot::jinja {

enum class BinaryOp : uint8_t { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow, kAnd, kOr };

// Everything but kAnd and kOr, which do not evaluate both sides.
Result<Value> Arithmetic(Runtime& rt, BinaryOp op, const Value& a, const Value& b);
Result<Value> Negate(const Value& value);
Result<Value> Positive(const Value& value);

}  // namespace cachalot::jinja
