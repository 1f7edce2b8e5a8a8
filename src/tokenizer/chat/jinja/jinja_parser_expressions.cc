// The expressions of jinja_parser.h, from the loosest binding operator to the tightest.
#include "tokenizer/chat/jinja/jinja_parser.h"

namespace cachalot::jinja {

Result<ExprPtr> Parser::ParseExpression(bool with_condition) {
  Nesting nesting(this);
  RETURN_IF_ERROR(CheckNesting());
  return with_condition ? ParseCondition() : ParseOr();
}

Result<ExprPtr> Parser::ParseTuple(bool with_condition, bool in_parentheses) {
  auto tuple = std::make_unique<ListExpr>(ExprKind::kTuple, token_.line);
  bool is_tuple = false;
  for (;;) {
    if (token_.Is(TokenType::kVariableEnd) || token_.Is(TokenType::kBlockEnd) || token_.IsOp(")")) break;
    ASSIGN_OR_RETURN(ExprPtr item, ParseExpression(with_condition));
    RETURN_IF_ERROR(Grow(tuple.get(), item));
    tuple->items.push_back(std::move(item));
    if (!token_.IsOp(",")) break;
    is_tuple = true;
    RETURN_IF_ERROR(Advance());
  }
  if (!is_tuple) {
    if (!tuple->items.empty()) return std::move(tuple->items[0]);
    if (!in_parentheses) return Unexpected("an expression");
  }
  return ExprPtr(std::move(tuple));
}

Result<ExprPtr> Parser::ParseCondition() {
  int line = token_.line;
  ASSIGN_OR_RETURN(ExprPtr then, ParseOr());
  while (token_.IsName("if")) {
    RETURN_IF_ERROR(Advance());
    auto cond = std::make_unique<CondExpr>(line);
    ASSIGN_OR_RETURN(cond->test, ParseOr());
    ASSIGN_OR_RETURN(const bool has_else, SkipName("else"));
    if (has_else) {
      Nesting nesting(this);
      RETURN_IF_ERROR(CheckNesting());
      ASSIGN_OR_RETURN(cond->otherwise, ParseCondition());
    }
    cond->then = std::move(then);
    for (const ExprPtr* child : {&cond->test, &cond->then, &cond->otherwise})
      RETURN_IF_ERROR(Grow(cond.get(), *child));
    then = std::move(cond);
    line = token_.line;
  }
  return then;
}

Result<ExprPtr> Parser::Binary(BinaryOp op, ExprPtr left, ExprPtr right, int line) {
  auto node = std::make_unique<BinaryExpr>(line);
  node->op = op;
  node->left = std::move(left);
  node->right = std::move(right);
  RETURN_IF_ERROR(Grow(node.get(), node->left));
  RETURN_IF_ERROR(Grow(node.get(), node->right));
  return ExprPtr(std::move(node));
}

Result<ExprPtr> Parser::ParseOr() {
  const int line = token_.line;
  ASSIGN_OR_RETURN(ExprPtr left, ParseAnd());
  while (token_.IsName("or")) {
    RETURN_IF_ERROR(Advance());
    ASSIGN_OR_RETURN(ExprPtr right, ParseAnd());
    ASSIGN_OR_RETURN(left, Binary(BinaryOp::kOr, std::move(left), std::move(right), line));
  }
  return left;
}

Result<ExprPtr> Parser::ParseAnd() {
  const int line = token_.line;
  ASSIGN_OR_RETURN(ExprPtr left, ParseNot());
  while (token_.IsName("and")) {
    RETURN_IF_ERROR(Advance());
    ASSIGN_OR_RETURN(ExprPtr right, ParseNot());
    ASSIGN_OR_RETURN(left, Binary(BinaryOp::kAnd, std::move(left), std::move(right), line));
  }
  return left;
}

Result<ExprPtr> Parser::ParseNot() {
  if (!token_.IsName("not")) return ParseCompare();
  Nesting nesting(this);
  RETURN_IF_ERROR(CheckNesting());
  auto node = std::make_unique<UnaryExpr>(token_.line);
  RETURN_IF_ERROR(Advance());
  ASSIGN_OR_RETURN(node->operand, ParseNot());
  RETURN_IF_ERROR(Grow(node.get(), node->operand));
  return ExprPtr(std::move(node));
}

Result<ExprPtr> Parser::ParseCompare() {
  static constexpr std::pair<std::string_view, CompareOp> kOperators[] = {
      {"==", CompareOp::kEqual},     {"!=", CompareOp::kNotEqual}, {"<", CompareOp::kLess},
      {"<=", CompareOp::kLessEqual}, {">", CompareOp::kGreater},   {">=", CompareOp::kGreaterEqual}};
  auto node = std::make_unique<CompareExpr>(token_.line);
  ASSIGN_OR_RETURN(node->first, ParseSum());
  for (;;) {
    CompareOp op = CompareOp::kIn;
    bool found = token_.IsName("in");
    for (const auto& [text, code] : kOperators) {
      if (token_.IsOp(text)) {
        op = code;
        found = true;
      }
    }
    if (token_.IsName("not")) {
      RETURN_IF_ERROR(Look());
      if (look_.IsName("in")) {
        RETURN_IF_ERROR(Advance());
        op = CompareOp::kNotIn;
        found = true;
      }
    }
    if (!found) break;
    RETURN_IF_ERROR(Advance());
    ASSIGN_OR_RETURN(ExprPtr right, ParseSum());
    RETURN_IF_ERROR(Grow(node.get(), right));
    node->rest.emplace_back(op, std::move(right));
  }
  if (node->rest.empty()) return std::move(node->first);
  RETURN_IF_ERROR(Grow(node.get(), node->first));
  return ExprPtr(std::move(node));
}

Result<ExprPtr> Parser::ParseSum() {
  const int line = token_.line;
  ASSIGN_OR_RETURN(ExprPtr left, ParseConcat());
  while (token_.IsOp("+") || token_.IsOp("-")) {
    const BinaryOp op = token_.IsOp("+") ? BinaryOp::kAdd : BinaryOp::kSub;
    RETURN_IF_ERROR(Advance());
    ASSIGN_OR_RETURN(ExprPtr right, ParseConcat());
    ASSIGN_OR_RETURN(left, Binary(op, std::move(left), std::move(right), line));
  }
  return left;
}

Result<ExprPtr> Parser::ParseConcat() {
  auto node = std::make_unique<ConcatExpr>(token_.line);
  for (;;) {
    ASSIGN_OR_RETURN(ExprPtr item, ParseProduct());
    RETURN_IF_ERROR(Grow(node.get(), item));
    node->items.push_back(std::move(item));
    ASSIGN_OR_RETURN(const bool more, SkipOp("~"));
    if (!more) break;
  }
  if (node->items.size() == 1) return std::move(node->items[0]);
  return ExprPtr(std::move(node));
}

Result<ExprPtr> Parser::ParseProduct() {
  static constexpr std::pair<std::string_view, BinaryOp> kOperators[] = {
      {"*", BinaryOp::kMul}, {"/", BinaryOp::kDiv}, {"//", BinaryOp::kFloorDiv}, {"%", BinaryOp::kMod}};
  const int line = token_.line;
  ASSIGN_OR_RETURN(ExprPtr left, ParsePower());
  for (;;) {
    const std::pair<std::string_view, BinaryOp>* found = nullptr;
    for (const auto& op : kOperators) {
      if (token_.IsOp(op.first)) found = &op;
    }
    if (found == nullptr) return left;
    RETURN_IF_ERROR(Advance());
    ASSIGN_OR_RETURN(ExprPtr right, ParsePower());
    ASSIGN_OR_RETURN(left, Binary(found->second, std::move(left), std::move(right), line));
  }
}

Result<ExprPtr> Parser::ParsePower() {
  const int line = token_.line;
  ASSIGN_OR_RETURN(ExprPtr left, ParseUnary(true));
  while (token_.IsOp("**")) {  // binds to the left, unlike Python's
    RETURN_IF_ERROR(Advance());
    ASSIGN_OR_RETURN(ExprPtr right, ParseUnary(true));
    ASSIGN_OR_RETURN(left, Binary(BinaryOp::kPow, std::move(left), std::move(right), line));
  }
  return left;
}

Result<ExprPtr> Parser::ParseUnary(bool with_filter) {
  ExprPtr node;
  if (token_.IsOp("-") || token_.IsOp("+")) {
    Nesting nesting(this);
    RETURN_IF_ERROR(CheckNesting());
    auto unary = std::make_unique<UnaryExpr>(token_.line);
    unary->op = token_.IsOp("-") ? UnaryOp::kNegate : UnaryOp::kPositive;
    RETURN_IF_ERROR(Advance());
    ASSIGN_OR_RETURN(unary->operand, ParseUnary(false));
    RETURN_IF_ERROR(Grow(unary.get(), unary->operand));
    node = std::move(unary);
  } else {
    ASSIGN_OR_RETURN(node, ParsePrimary());
  }
  ASSIGN_OR_RETURN(node, ParsePostfix(std::move(node)));
  if (!with_filter) return node;
  return ParseFilterChain(std::move(node));
}

Result<ExprPtr> Parser::TextConst(std::string text, int line) {
  RETURN_IF_ERROR(Count());
  auto node = std::make_unique<ConstExpr>(line);
  node->is_text = true;
  node->text = std::move(text);
  node->id = num_texts_++;
  return ExprPtr(std::move(node));
}

Result<ExprPtr> Parser::ParsePrimary() {
  const int line = token_.line;
  const auto constant = [&](Value value) -> Result<ExprPtr> {
    RETURN_IF_ERROR(Count());
    RETURN_IF_ERROR(Advance());
    auto node = std::make_unique<ConstExpr>(line);
    node->value = value;
    return ExprPtr(std::move(node));
  };
  switch (token_.type) {
    case TokenType::kName: {
      const std::string& name = token_.text;
      if (name == "true" || name == "True") return constant(Value::Bool(true));
      if (name == "false" || name == "False") return constant(Value::Bool(false));
      if (name == "none" || name == "None") return constant(Value::None());
      auto node = std::make_unique<NameExpr>(line);
      node->name = name;
      RETURN_IF_ERROR(Count());
      RETURN_IF_ERROR(Advance());
      return ExprPtr(std::move(node));
    }
    case TokenType::kInteger:
      return constant(Value::Integer(token_.integer));
    case TokenType::kFloat:
      return constant(Value::Float(token_.number));
    case TokenType::kString: {
      std::string text;
      while (token_.Is(TokenType::kString)) {  // neighbours are one string
        text += token_.text;
        RETURN_IF_ERROR(Advance());
      }
      return TextConst(std::move(text), line);
    }
    case TokenType::kOperator:
      if (token_.IsOp("(")) {
        RETURN_IF_ERROR(Advance());
        ASSIGN_OR_RETURN(ExprPtr inner, ParseTuple(true, true));
        RETURN_IF_ERROR(ExpectOp(")"));
        return inner;
      }
      if (token_.IsOp("[")) return ParseListLiteral();
      if (token_.IsOp("{")) return ParseDictLiteral();
      break;
    default:
      break;
  }
  return Fail(fmt::format("unexpected '{}'", Describe(token_)));
}

Result<ExprPtr> Parser::ParseListLiteral() {
  auto list = std::make_unique<ListExpr>(ExprKind::kList, token_.line);
  RETURN_IF_ERROR(Advance());
  while (!token_.IsOp("]")) {
    if (!list->items.empty()) {
      RETURN_IF_ERROR(ExpectOp(","));
      if (token_.IsOp("]")) break;
    }
    ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
    RETURN_IF_ERROR(Grow(list.get(), item));
    list->items.push_back(std::move(item));
  }
  RETURN_IF_ERROR(Advance());
  return ExprPtr(std::move(list));
}

Result<ExprPtr> Parser::ParseDictLiteral() {
  auto dict = std::make_unique<DictExpr>(token_.line);
  RETURN_IF_ERROR(Advance());
  while (!token_.IsOp("}")) {
    if (!dict->items.empty()) {
      RETURN_IF_ERROR(ExpectOp(","));
      if (token_.IsOp("}")) break;
    }
    ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
    RETURN_IF_ERROR(ExpectOp(":"));
    ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    RETURN_IF_ERROR(Grow(dict.get(), key));
    RETURN_IF_ERROR(Grow(dict.get(), value));
    dict->items.emplace_back(std::move(key), std::move(value));
  }
  RETURN_IF_ERROR(Advance());
  return ExprPtr(std::move(dict));
}

Result<ExprPtr> Parser::ParsePostfix(ExprPtr object) {
  for (;;) {
    if (token_.IsOp(".") || token_.IsOp("[")) {
      ASSIGN_OR_RETURN(object, ParseSubscript(std::move(object)));
    } else if (token_.IsOp("(")) {
      ASSIGN_OR_RETURN(object, ParseCall(std::move(object)));
    } else {
      return object;
    }
  }
}

Result<ExprPtr> Parser::ParseFilterChain(ExprPtr object) {
  for (;;) {
    if (token_.IsOp("|")) {
      ASSIGN_OR_RETURN(object, ParseFilter(std::move(object)));
    } else if (token_.IsName("is")) {
      ASSIGN_OR_RETURN(object, ParseTest(std::move(object)));
    } else if (token_.IsOp("(")) {
      ASSIGN_OR_RETURN(object, ParseCall(std::move(object)));
    } else {
      return object;
    }
  }
}

Result<ExprPtr> Parser::ParseSubscript(ExprPtr object) {
  const int line = token_.line;
  if (token_.IsOp(".")) {
    RETURN_IF_ERROR(Advance());
    if (token_.Is(TokenType::kName)) {
      auto node = std::make_unique<AttrExpr>(line);
      node->object = std::move(object);
      RETURN_IF_ERROR(Grow(node.get(), node->object));
      RETURN_IF_ERROR(ExpectName(&node->name));
      return ExprPtr(std::move(node));
    }
    if (!token_.Is(TokenType::kInteger)) return Unexpected("a name or number");
    auto node = std::make_unique<ItemExpr>(line);
    node->object = std::move(object);
    ASSIGN_OR_RETURN(node->key, ParsePrimary());
    RETURN_IF_ERROR(Grow(node.get(), node->object));
    return ExprPtr(std::move(node));
  }
  RETURN_IF_ERROR(Advance());
  // One key, several (a tuple), or one slice.
  auto slice = std::make_unique<SliceExpr>(line);
  auto keys = std::make_unique<ListExpr>(ExprKind::kTuple, line);
  bool is_slice = false;
  while (!token_.IsOp("]")) {
    if (is_slice) return Fail("a slice cannot stand among several subscripts");
    if (!keys->items.empty()) RETURN_IF_ERROR(ExpectOp(","));
    ExprPtr key;
    if (!token_.IsOp(":")) {
      ASSIGN_OR_RETURN(key, ParseExpression());
    }
    if (!token_.IsOp(":")) {
      RETURN_IF_ERROR(Grow(keys.get(), key));
      keys->items.push_back(std::move(key));
      continue;
    }
    if (!keys->items.empty()) return Fail("a slice cannot stand among several subscripts");
    is_slice = true;
    RETURN_IF_ERROR(Advance());
    slice->start = std::move(key);
    const auto at_end = [&] { return token_.IsOp(":") || token_.IsOp("]") || token_.IsOp(","); };
    if (!at_end()) {
      ASSIGN_OR_RETURN(slice->stop, ParseExpression());
    }
    ASSIGN_OR_RETURN(const bool has_step, SkipOp(":"));
    if (has_step && !at_end()) {
      ASSIGN_OR_RETURN(slice->step, ParseExpression());
    }
  }
  RETURN_IF_ERROR(Advance());
  if (is_slice) {
    slice->object = std::move(object);
    for (const ExprPtr* child : {&slice->object, &slice->start, &slice->stop, &slice->step}) {
      RETURN_IF_ERROR(Grow(slice.get(), *child));
    }
    return ExprPtr(std::move(slice));
  }
  auto node = std::make_unique<ItemExpr>(line);
  node->object = std::move(object);
  if (keys->items.size() == 1)
    node->key = std::move(keys->items[0]);
  else
    node->key = std::move(keys);
  RETURN_IF_ERROR(Grow(node.get(), node->object));
  RETURN_IF_ERROR(Grow(node.get(), node->key));
  return ExprPtr(std::move(node));
}

}  // namespace cachalot::jinja
