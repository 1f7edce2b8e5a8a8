// The expressions of interpreter.h.
#include "tokenizer/chat/jinja/access.h"
#include "tokenizer/chat/jinja/depth_guard.h"
#include "tokenizer/chat/jinja/dict.h"
#include "tokenizer/chat/jinja/filters.h"
#include "tokenizer/chat/jinja/interpreter.h"
#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_compare.h"
#include "tokenizer/chat/jinja/jinja_tests.h"
#include "tokenizer/chat/jinja/text_of.h"

namespace cachalot::jinja {

Result<Value> Interpreter::Evaluate(const Expr& e, Activation* act) {
  const DepthGuard guard(rt_);
  RETURN_IF_ERROR(guard.status());
  RETURN_IF_ERROR(rt_.Step());
  Result<Value> result = EvaluateNode(e, act);
  if (!result.ok() && error_line_ == 0) [[unlikely]]
    error_line_ = e.line;
  return result;
}

Result<Value> Interpreter::EvaluateNode(const Expr& e, Activation* act) {
  switch (e.kind) {
    case ExprKind::kConst:
      return Constant(static_cast<const ConstExpr&>(e));
    case ExprKind::kName:
      return Name(static_cast<const NameExpr&>(e), act);
    case ExprKind::kTuple:
    case ExprKind::kList:
      return List(static_cast<const ListExpr&>(e), act);
    case ExprKind::kDict:
      return Dictionary(static_cast<const DictExpr&>(e), act);
    case ExprKind::kUnary:
      return Unary(static_cast<const UnaryExpr&>(e), act);
    case ExprKind::kBinary:
      return Binary(static_cast<const BinaryExpr&>(e), act);
    case ExprKind::kConcat:
      return Concat(static_cast<const ConcatExpr&>(e), act);
    case ExprKind::kCompare:
      return Compare(static_cast<const CompareExpr&>(e), act);
    case ExprKind::kCond:
      return Conditional(static_cast<const CondExpr&>(e), act);
    case ExprKind::kAttr:
      return Attribute(static_cast<const AttrExpr&>(e), act);
    case ExprKind::kItem:
      return Item(static_cast<const ItemExpr&>(e), act);
    case ExprKind::kSlice:
      return Slice(static_cast<const SliceExpr&>(e), act);
    case ExprKind::kCall:
      return Call(static_cast<const CallExpr&>(e), act);
    case ExprKind::kFilter:
      return Filter(static_cast<const FilterExpr&>(e), act);
    case ExprKind::kTest:
      return Test(static_cast<const TestExpr&>(e), act);
  }
  return Internal("unknown expression");
}

Result<Value> Interpreter::Constant(const ConstExpr& e) {
  if (!e.is_text) return e.value;
  const String*& text = texts_[e.id];
  if (text == nullptr) text = BorrowText(rt_, e.text, false);
  return Value::Str(text);
}

Result<Value> Interpreter::Name(const NameExpr& e, Activation* act) {
  const Value& value = act->At(e.slot);
  return value.is_missing() ? UndefinedName(rt_, e.name) : value;
}

Result<Value> Interpreter::List(const ListExpr& e, Activation* act) {
  ASSIGN_OR_RETURN(Value * items, rt_.NewValues(static_cast<int64_t>(e.items.size())));
  for (size_t i = 0; i < e.items.size(); ++i) {
    ASSIGN_OR_RETURN(items[i], Evaluate(*e.items[i], act));
  }
  const auto size = static_cast<uint32_t>(e.items.size());
  return Value::Seq(e.kind == ExprKind::kList ? Kind::kList : Kind::kTuple,
                    rt_.arena.New<Sequence>(Sequence{items, size, false}));
}

Result<Value> Interpreter::Dictionary(const DictExpr& e, Activation* act) {
  DictBuilder dict(rt_);
  for (const auto& [key_expr, value_expr] : e.items) {
    ASSIGN_OR_RETURN(const Value key, Evaluate(*key_expr, act));
    ASSIGN_OR_RETURN(const Value value, Evaluate(*value_expr, act));
    RETURN_IF_ERROR(dict.Set(key, value).status());
  }
  return dict.Finish();
}

Result<Value> Interpreter::Unary(const UnaryExpr& e, Activation* act) {
  ASSIGN_OR_RETURN(const Value value, Evaluate(*e.operand, act));
  switch (e.op) {
    case UnaryOp::kNot:
      return Value::Bool(!Truth(value));
    case UnaryOp::kNegate:
      return Negate(value);
    case UnaryOp::kPositive:
      return Positive(value);
  }
  return Internal("unknown operator");
}

Result<Value> Interpreter::Binary(const BinaryExpr& e, Activation* act) {
  ASSIGN_OR_RETURN(const Value left, Evaluate(*e.left, act));
  if (e.op == BinaryOp::kAnd && !Truth(left)) return left;
  if (e.op == BinaryOp::kOr && Truth(left)) return left;
  ASSIGN_OR_RETURN(const Value right, Evaluate(*e.right, act));
  if (e.op == BinaryOp::kAnd || e.op == BinaryOp::kOr) return right;
  return Arithmetic(rt_, e.op, left, right);
}

Result<Value> Interpreter::Concat(const ConcatExpr& e, Activation* act) {
  StrBuilder text(rt_);
  for (const ExprPtr& item : e.items) {
    ASSIGN_OR_RETURN(const Value value, Evaluate(*item, act));
    RETURN_IF_ERROR(AddText(rt_, value, &text));
  }
  ASSIGN_OR_RETURN(const String* s, text.Finish());
  return Value::Str(s);
}

Result<Value> Interpreter::Compare(const CompareExpr& e, Activation* act) {
  ASSIGN_OR_RETURN(Value left, Evaluate(*e.first, act));
  for (const auto& [op, expr] : e.rest) {
    ASSIGN_OR_RETURN(const Value right, Evaluate(*expr, act));
    bool holds = false;
    switch (op) {
      case CompareOp::kEqual:
      case CompareOp::kNotEqual: {
        ASSIGN_OR_RETURN(holds, Equal(rt_, left, right));
        if (op == CompareOp::kNotEqual) holds = !holds;
        break;
      }
      case CompareOp::kLess: {
        ASSIGN_OR_RETURN(holds, InOrder(rt_, Order::kLess, left, right));
        break;
      }
      case CompareOp::kLessEqual: {
        ASSIGN_OR_RETURN(holds, InOrder(rt_, Order::kLessEqual, left, right));
        break;
      }
      case CompareOp::kGreater: {
        ASSIGN_OR_RETURN(holds, InOrder(rt_, Order::kGreater, left, right));
        break;
      }
      case CompareOp::kGreaterEqual: {
        ASSIGN_OR_RETURN(holds, InOrder(rt_, Order::kGreaterEqual, left, right));
        break;
      }
      case CompareOp::kIn: {
        ASSIGN_OR_RETURN(holds, Contains(rt_, left, right));
        break;
      }
      case CompareOp::kNotIn: {
        ASSIGN_OR_RETURN(const bool found, Contains(rt_, left, right));
        holds = !found;
        break;
      }
    }
    if (!holds) return Value::Bool(false);
    left = right;
  }
  return Value::Bool(true);
}

Result<Value> Interpreter::Conditional(const CondExpr& e, Activation* act) {
  ASSIGN_OR_RETURN(const Value test, Evaluate(*e.test, act));
  if (Truth(test)) return Evaluate(*e.then, act);
  if (e.otherwise != nullptr) return Evaluate(*e.otherwise, act);
  return MakeUndefined(rt_, "the inline if-expression evaluated to false and no else section was defined");
}

Result<Value> Interpreter::Attribute(const AttrExpr& e, Activation* act) {
  ASSIGN_OR_RETURN(const Value object, Evaluate(*e.object, act));
  return GetAttribute(rt_, object, e.name);
}

Result<Value> Interpreter::Item(const ItemExpr& e, Activation* act) {
  ASSIGN_OR_RETURN(const Value object, Evaluate(*e.object, act));
  ASSIGN_OR_RETURN(const Value key, Evaluate(*e.key, act));
  return GetItem(rt_, object, key);
}

Result<Value> Interpreter::Slice(const SliceExpr& e, Activation* act) {
  ASSIGN_OR_RETURN(const Value object, Evaluate(*e.object, act));
  Value bounds[3];
  const ExprPtr* exprs[3] = {&e.start, &e.stop, &e.step};
  for (int i = 0; i < 3; ++i) {
    if (*exprs[i] == nullptr) continue;
    ASSIGN_OR_RETURN(bounds[i], Evaluate(**exprs[i], act));
  }
  return GetSlice(rt_, object, bounds[0], bounds[1], bounds[2]);
}

Result<Value> Interpreter::Filter(const FilterExpr& e, Activation* act) {
  if (e.filter == nullptr) return InvalidArgument("no filter named '{}' found", e.name);
  Value input;
  if (e.input == nullptr) {
    input = *block_input_;
  } else {
    ASSIGN_OR_RETURN(input, Evaluate(*e.input, act));
  }
  if (e.args.empty()) return e.filter->apply(rt_, input, Args{});
  CallArgs args;
  RETURN_IF_ERROR(EvaluateArgs(e.args, act, &args));
  return e.filter->apply(rt_, input, args.View());
}

Result<Value> Interpreter::Test(const TestExpr& e, Activation* act) {
  if (e.test == nullptr) return InvalidArgument("no test named '{}' found", e.name);
  ASSIGN_OR_RETURN(const Value input, Evaluate(*e.input, act));
  CallArgs args;
  RETURN_IF_ERROR(EvaluateArgs(e.args, act, &args));
  ASSIGN_OR_RETURN(const bool holds, e.test->holds(rt_, input, args.View()));
  return Value::Bool(holds);
}

}  // namespace cachalot::jinja
