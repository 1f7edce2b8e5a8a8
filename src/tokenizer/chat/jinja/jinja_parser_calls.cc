// Calls, filters and tests of jinja_parser.h.
#include "tokenizer/chat/jinja/filters.h"
#include "tokenizer/chat/jinja/jinja_parser.h"
#include "tokenizer/chat/jinja/jinja_tests.h"

namespace cachalot::jinja {
namespace {

template <typename Visit>
Status ForEachArg(const ArgList& args, Visit visit) {
  for (const ExprPtr& e : args.positional) RETURN_IF_ERROR(visit(e));
  for (const auto& [name, e] : args.keywords) RETURN_IF_ERROR(visit(e));
  RETURN_IF_ERROR(visit(args.star));
  return visit(args.star_star);
}

}  // namespace

Status Parser::ParseArgs(ArgList* out) {
  const int line = token_.line;
  const auto invalid = [&] { return FailAt(line, "invalid syntax for function call expression"); };
  RETURN_IF_ERROR(ExpectOp("("));
  bool needs_comma = false;
  while (!token_.IsOp(")")) {
    if (needs_comma) {
      RETURN_IF_ERROR(ExpectOp(","));
      if (token_.IsOp(")")) break;
    }
    needs_comma = true;
    if (token_.IsOp("*")) {
      if (out->star || out->star_star) return invalid();
      RETURN_IF_ERROR(Advance());
      ASSIGN_OR_RETURN(out->star, ParseExpression());
      continue;
    }
    if (token_.IsOp("**")) {
      if (out->star_star) return invalid();
      RETURN_IF_ERROR(Advance());
      ASSIGN_OR_RETURN(out->star_star, ParseExpression());
      continue;
    }
    if (token_.Is(TokenType::kName)) RETURN_IF_ERROR(Look());
    if (token_.Is(TokenType::kName) && look_.IsOp("=") && has_look_) {
      if (out->star_star) return invalid();
      std::string name = token_.text;
      for (const auto& [other, value] : out->keywords) {
        if (other == name) return Fail(fmt::format("keyword argument repeated: {}", name));
      }
      RETURN_IF_ERROR(Advance());
      RETURN_IF_ERROR(Advance());
      ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      out->keywords.emplace_back(std::move(name), std::move(value));
      continue;
    }
    if (out->star || out->star_star || !out->keywords.empty()) return invalid();
    ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    out->positional.push_back(std::move(value));
  }
  return Advance();
}

Result<ExprPtr> Parser::ParseCall(ExprPtr callee) {
  auto call = std::make_unique<CallExpr>(token_.line);
  call->callee = std::move(callee);
  RETURN_IF_ERROR(Grow(call.get(), call->callee));
  RETURN_IF_ERROR(ParseArgs(&call->args));
  RETURN_IF_ERROR(ForEachArg(call->args, [&](const ExprPtr& e) { return Grow(call.get(), e); }));
  return ExprPtr(std::move(call));
}

Result<ExprPtr> Parser::ParseFilter(ExprPtr input) {
  RETURN_IF_ERROR(SkipOp("|").status());
  auto filter = std::make_unique<FilterExpr>(token_.line);
  RETURN_IF_ERROR(ExpectName(&filter->name));
  while (token_.IsOp(".")) {
    RETURN_IF_ERROR(Advance());
    std::string part;
    RETURN_IF_ERROR(ExpectName(&part));
    filter->name += "." + part;
  }
  filter->filter = FindFilter(filter->name);
  filter->input = std::move(input);
  RETURN_IF_ERROR(Grow(filter.get(), filter->input));
  if (token_.IsOp("(")) {
    RETURN_IF_ERROR(ParseArgs(&filter->args));
    RETURN_IF_ERROR(ForEachArg(filter->args, [&](const ExprPtr& e) { return Grow(filter.get(), e); }));
  }
  return ExprPtr(std::move(filter));
}

Result<ExprPtr> Parser::ParseTest(ExprPtr input) {
  const int line = token_.line;
  RETURN_IF_ERROR(Advance());
  ASSIGN_OR_RETURN(const bool negated, SkipName("not"));
  auto test = std::make_unique<TestExpr>(line);
  RETURN_IF_ERROR(ExpectName(&test->name));
  while (token_.IsOp(".")) {
    RETURN_IF_ERROR(Advance());
    std::string part;
    RETURN_IF_ERROR(ExpectName(&part));
    test->name += "." + part;
  }
  test->test = FindTest(test->name);
  test->input = std::move(input);
  RETURN_IF_ERROR(Grow(test.get(), test->input));
  const bool is_word =
      token_.Is(TokenType::kName) && !token_.IsName("else") && !token_.IsName("or") && !token_.IsName("and");
  const bool is_literal = token_.Is(TokenType::kString) || token_.Is(TokenType::kInteger) ||
                          token_.Is(TokenType::kFloat) || token_.IsOp("[") || token_.IsOp("{");
  if (token_.IsOp("(")) {
    RETURN_IF_ERROR(ParseArgs(&test->args));
  } else if (is_word || is_literal) {
    // One argument may stand without parentheses.
    if (token_.IsName("is")) return Fail("you cannot chain multiple tests with is");
    ASSIGN_OR_RETURN(ExprPtr arg, ParsePrimary());
    ASSIGN_OR_RETURN(arg, ParsePostfix(std::move(arg)));
    test->args.positional.push_back(std::move(arg));
  }
  RETURN_IF_ERROR(ForEachArg(test->args, [&](const ExprPtr& e) { return Grow(test.get(), e); }));
  if (!negated) return ExprPtr(std::move(test));
  auto inverse = std::make_unique<UnaryExpr>(line);
  inverse->operand = std::move(test);
  RETURN_IF_ERROR(Grow(inverse.get(), inverse->operand));
  return ExprPtr(std::move(inverse));
}

}  // namespace cachalot::jinja
