#include "tokenizer/chat/jinja/jinja_tests.h"

#include <algorithm>

#include "tokenizer/chat/jinja/arithmetic.h"
#include "tokenizer/chat/jinja/dict.h"
#include "tokenizer/chat/jinja/filters.h"
#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_args.h"
#include "tokenizer/chat/jinja/methods.h"
#include "tokenizer/chat/jinja/text_of.h"

namespace cachalot::jinja {
namespace {

template <bool (*kHolds)(const Value&)>
Result<bool> Simple(Runtime&, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("test", args));
  return kHolds(input);
}

bool Defined(const Value& v) {
  return !v.is_undefined();
}
bool Undefined(const Value& v) {
  return v.is_undefined();
}
bool IsNone(const Value& v) {
  return v.is_none();
}
bool Boolean(const Value& v) {
  return v.is(Kind::kBool);
}
bool IsTrue(const Value& v) {
  return v.is(Kind::kBool) && v.b;
}
bool IsFalse(const Value& v) {
  return v.is(Kind::kBool) && !v.b;
}
bool Integer(const Value& v) {
  return v.is(Kind::kInt);
}
bool IsFloat(const Value& v) {
  return v.is(Kind::kFloat);
}
bool Number(const Value& v) {
  return v.is_number();
}
bool IsText(const Value& v) {
  return v.is_string();
}
bool Mapping(const Value& v) {
  return v.is_dict();
}
bool Escaped(const Value& v) {
  return v.is_string() && v.s->markup;
}
bool Iterable(const Value& v) {
  return IsIterable(v);
}

bool IsSequence(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_list_or_tuple() || v.is_dict() || v.is(Kind::kRange);
}

bool Callable(const Value& v) {
  return v.is_undefined() || v.is(Kind::kMacro) || v.is(Kind::kBuiltin) || v.is(Kind::kMethod) ||
         v.is(Kind::kLoop) || v.is(Kind::kJoiner);
}

// value % divisor == rest
Result<bool> Remainder(Runtime& rt, const Value& value, const Value& divisor, int rest) {
  ASSIGN_OR_RETURN(const Value remainder, Arithmetic(rt, BinaryOp::kMod, value, divisor));
  return Equal(rt, remainder, Value::Integer(rest));
}

Result<bool> Odd(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("odd", args));
  return Remainder(rt, input, Value::Integer(2), 1);
}
Result<bool> Even(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("even", args));
  return Remainder(rt, input, Value::Integer(2), 0);
}
Result<bool> DivisibleBy(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("divisibleby", {"num"}, 1, args));
  return Remainder(rt, input, a[0], 0);
}

template <bool kUpper>
Result<bool> IsCase(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("test", args));
  ASSIGN_OR_RETURN(const String* s, TextOf(rt, input));
  ASSIGN_OR_RETURN(const Value holds,
                   FindStringMethod(kUpper ? "isupper" : "islower")(rt, Value::Str(s), Args{}));
  return holds.b;
}

template <bool kNot>
Result<bool> Equals(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("eq", {""}, 1, args));
  ASSIGN_OR_RETURN(const bool same, Equal(rt, input, a[0]));
  return same != kNot;
}

template <Order kOrder>
Result<bool> Ordered(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("comparison", {""}, 1, args));
  return InOrder(rt, kOrder, input, a[0]);
}

Result<bool> In(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("in", {"seq"}, 1, args));
  return Contains(rt, input, a[0]);
}

// Identity, as far as it means something for values: equal scalars, the same object otherwise.
Result<bool> SameAs(Runtime& rt, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const auto a, Bind("sameas", {"other"}, 1, args));
  if (input.kind != a[0].kind) return false;
  if (input.is_number() || input.is_none() || input.is_string()) return Equal(rt, input, a[0]);
  return input.dict == a[0].dict;
}

Result<bool> IsFilter(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("filter", args));
  RETURN_IF_ERROR(HashOf(rt, input).status());
  return input.is_string() && FindFilter(input.s->view()) != nullptr;
}

Result<bool> IsTest(Runtime& rt, const Value& input, const Args& args) {
  RETURN_IF_ERROR(ExpectNoArgs("test", args));
  RETURN_IF_ERROR(HashOf(rt, input).status());
  return input.is_string() && FindTest(input.s->view()) != nullptr;
}

constexpr TestEntry kTests[] = {
    {"!=", Equals<true>},
    {"<", Ordered<Order::kLess>},
    {"<=", Ordered<Order::kLessEqual>},
    {"==", Equals<false>},
    {">", Ordered<Order::kGreater>},
    {">=", Ordered<Order::kGreaterEqual>},
    {"boolean", Simple<Boolean>},
    {"callable", Simple<Callable>},
    {"defined", Simple<Defined>},
    {"divisibleby", DivisibleBy},
    {"eq", Equals<false>},
    {"equalto", Equals<false>},
    {"escaped", Simple<Escaped>},
    {"even", Even},
    {"false", Simple<IsFalse>},
    {"filter", IsFilter},
    {"float", Simple<IsFloat>},
    {"ge", Ordered<Order::kGreaterEqual>},
    {"greaterthan", Ordered<Order::kGreater>},
    {"gt", Ordered<Order::kGreater>},
    {"in", In},
    {"integer", Simple<Integer>},
    {"iterable", Simple<Iterable>},
    {"le", Ordered<Order::kLessEqual>},
    {"lessthan", Ordered<Order::kLess>},
    {"lower", IsCase<false>},
    {"lt", Ordered<Order::kLess>},
    {"mapping", Simple<Mapping>},
    {"ne", Equals<true>},
    {"none", Simple<IsNone>},
    {"number", Simple<Number>},
    {"odd", Odd},
    {"sameas", SameAs},
    {"sequence", Simple<IsSequence>},
    {"string", Simple<IsText>},
    {"test", IsTest},
    {"true", Simple<IsTrue>},
    {"undefined", Simple<Undefined>},
    {"upper", IsCase<true>},
};

}  // namespace

const TestEntry* FindTest(std::string_view name) {
  const auto it = std::lower_bound(std::begin(kTests), std::end(kTests), name,
                                   [](const TestEntry& e, std::string_view n) { return e.name < n; });
  return it != std::end(kTests) && it->name == name ? it : nullptr;
}

}  // namespace cachalot::jinja
