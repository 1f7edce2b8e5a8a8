#include "tokenizer/chat/jinja/arithmetic.h"

#include <cmath>

#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_compare.h"
#include "tokenizer/chat/jinja/jinja_strings.h"
#include "tokenizer/chat/jinja/numbers.h"
#include "tokenizer/chat/jinja/text_ops.h"

namespace cachalot::jinja {
namespace {

const char* Symbol(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return "+";
    case BinaryOp::kSub:
      return "-";
    case BinaryOp::kMul:
      return "*";
    case BinaryOp::kDiv:
      return "/";
    case BinaryOp::kFloorDiv:
      return "//";
    case BinaryOp::kMod:
      return "%";
    case BinaryOp::kPow:
      return "** or pow()";
    case BinaryOp::kAnd:
      return "and";
    case BinaryOp::kOr:
      return "or";
  }
  return "";
}

Result<Value> IntArithmetic(BinaryOp op, Int a, Int b) {
  Int out = 0;
  switch (op) {
    case BinaryOp::kAdd: {
      ASSIGN_OR_RETURN(out, AddInt(a, b));
      break;
    }
    case BinaryOp::kSub: {
      ASSIGN_OR_RETURN(out, SubInt(a, b));
      break;
    }
    case BinaryOp::kMul: {
      ASSIGN_OR_RETURN(out, MulInt(a, b));
      break;
    }
    case BinaryOp::kDiv:
      if (b == 0) return InvalidArgument("division by zero");
      return Value::Float(static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
    case BinaryOp::kFloorDiv:
      if (b == 0) return InvalidArgument("integer division or modulo by zero");
      out = FloorDivInt(a, b);
      break;
    case BinaryOp::kMod:
      if (b == 0) return InvalidArgument("integer modulo by zero");
      out = FloorModInt(a, b);
      break;
    case BinaryOp::kPow: {
      if (b < 0) {
        if (a == 0) return InvalidArgument("0.0 cannot be raised to a negative power");
        return Value::Float(std::pow(static_cast<double>(a), static_cast<double>(b)));
      }
      ASSIGN_OR_RETURN(out, PowInt(a, b));
      break;
    }
    case BinaryOp::kAnd:
    case BinaryOp::kOr:
      break;
  }
  return Value::Integer(out);
}

Result<Value> FloatArithmetic(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return Value::Float(a + b);
    case BinaryOp::kSub:
      return Value::Float(a - b);
    case BinaryOp::kMul:
      return Value::Float(a * b);
    case BinaryOp::kDiv:
      if (b == 0) return InvalidArgument("float division by zero");
      return Value::Float(a / b);
    case BinaryOp::kFloorDiv: {
      if (b == 0) return InvalidArgument("float floor division by zero");
      const double mod = FloorModFloat(a, b);
      const double div = (a - mod) / b;
      double floor = div != 0 ? std::floor(div) : std::copysign(0.0, a / b);
      if (div - floor > 0.5) floor += 1;
      return Value::Float(floor);
    }
    case BinaryOp::kMod:
      if (b == 0) return InvalidArgument("float modulo");
      return Value::Float(FloorModFloat(a, b));
    case BinaryOp::kPow: {
      if (a == 0 && b < 0) return InvalidArgument("0.0 cannot be raised to a negative power");
      if (a < 0 && std::floor(b) != b && std::isfinite(b))
        return Unsupported("a power that is a complex number");
      const double out = std::pow(a, b);
      if (std::isinf(out) && std::isfinite(a) && std::isfinite(b))
        return InvalidArgument("numerical result out of range");
      return Value::Float(out);
    }
    case BinaryOp::kAnd:
    case BinaryOp::kOr:
      break;
  }
  return Value();
}

Result<Value> AddStrings(Runtime& rt, const String* a, const String* b) {
  if (a->markup != b->markup) {
    ASSIGN_OR_RETURN(a, EscapeHtml(rt, a));
    ASSIGN_OR_RETURN(b, EscapeHtml(rt, b));
  }
  ASSIGN_OR_RETURN(const String* sum, ConcatText(rt, a, b));
  return Value::Str(sum);
}

Result<Value> AddSequences(Runtime& rt, const Value& a, const Value& b) {
  const auto x = a.items();
  const auto y = b.items();
  ASSIGN_OR_RETURN(Value * items, rt.NewValues(static_cast<int64_t>(x.size() + y.size())));
  std::copy(x.begin(), x.end(), items);
  std::copy(y.begin(), y.end(), items + x.size());
  return Value::Seq(
      a.kind, rt.arena.New<Sequence>(Sequence{items, static_cast<uint32_t>(x.size() + y.size()), false}));
}

Result<Value> Repeat(Runtime& rt, const Value& value, Int count) {
  if (count > INT64_MAX || count < INT64_MIN) return Exhausted("a sequence repeated too often");
  if (value.is_string()) {
    ASSIGN_OR_RETURN(const String* s, RepeatText(rt, value.s, count));
    return Value::Str(s);
  }
  const auto items = value.items();
  if (count <= 0 || items.empty()) return MakeSequence(rt, value.kind, {});
  if (count > (Int{1} << 31) / static_cast<Int>(items.size()))
    return Exhausted("a repeated list is too long");
  ASSIGN_OR_RETURN(Value * out,
                   rt.NewValues(static_cast<int64_t>(count) * static_cast<int64_t>(items.size())));
  Value* to = out;
  for (Int i = 0; i < count; ++i) to = std::copy(items.begin(), items.end(), to);
  return Value::Seq(value.kind,
                    rt.arena.New<Sequence>(Sequence{out, static_cast<uint32_t>(to - out), false}));
}

bool IsRepeatable(const Value& v) {
  return v.is_string() || v.is_list_or_tuple();
}

}  // namespace

Result<Value> Arithmetic(Runtime& rt, BinaryOp op, const Value& a, const Value& b) {
  if (op == BinaryOp::kAdd && a.is_string() && b.is_string()) return AddStrings(rt, a.s, b.s);
  if (op == BinaryOp::kMod && a.is_string()) {
    ASSIGN_OR_RETURN(const String* s, FormatPercent(rt, a.s, b));
    return Value::Str(s);
  }
  if (a.is_undefined()) return UndefinedError(a);
  if (b.is_undefined()) return UndefinedError(b);
  if (a.is_number() && b.is_number()) {
    const bool user = a.from_user || b.from_user;
    Result<Value> out = a.is_int_like() && b.is_int_like()
                            ? IntArithmetic(op, a.as_int(), b.as_int())
                            : FloatArithmetic(op, a.as_double(), b.as_double());
    RETURN_IF_ERROR(out.status());
    return out->WithUser(user);
  }
  if (op == BinaryOp::kAdd && a.is_list_or_tuple() && a.kind == b.kind) return AddSequences(rt, a, b);
  if (op == BinaryOp::kMul && IsRepeatable(a) && b.is_int_like()) return Repeat(rt, a, b.as_int());
  if (op == BinaryOp::kMul && a.is_int_like() && IsRepeatable(b)) return Repeat(rt, b, a.as_int());
  if (op == BinaryOp::kAdd && (a.is_string() || a.is_list_or_tuple())) {
    return TypeError("can only concatenate {} (not \"{}\") to {}", TypeName(a), TypeName(b), TypeName(a));
  }
  return TypeError("unsupported operand type(s) for {}: '{}' and '{}'", Symbol(op), TypeName(a), TypeName(b));
}

Result<Value> Negate(const Value& value) {
  if (value.is_undefined()) return UndefinedError(value);
  if (value.is(Kind::kFloat)) return Value::Float(-value.f).WithUser(value.from_user);
  if (!value.is_int_like()) return TypeError("bad operand type for unary -: '{}'", TypeName(value));
  ASSIGN_OR_RETURN(const Int negated, SubInt(0, value.as_int()));
  return Value::Integer(negated).WithUser(value.from_user);
}

Result<Value> Positive(const Value& value) {
  if (value.is_undefined()) return UndefinedError(value);
  if (value.is(Kind::kFloat)) return value;
  if (!value.is_int_like()) return TypeError("bad operand type for unary +: '{}'", TypeName(value));
  return Value::Integer(value.as_int()).WithUser(value.from_user);
}

}  // namespace cachalot::jinja
