#include "tokenizer/chat/jinja/jinja_parser.h"

#include <algorithm>

namespace cachalot::jinja {
namespace {

// Bounds the memory of a tree: a node takes some 100 bytes.
constexpr int kMaxNodes = 200'000;

}  // namespace

Result<ParsedTemplate> Parser::Parse() {
  RETURN_IF_ERROR(Advance());
  ParsedTemplate out;
  RETURN_IF_ERROR(ParseBody({}, &out.body));
  out.num_texts = num_texts_;
  return out;
}

Status Parser::Advance() {
  if (has_look_) {
    token_ = std::move(look_);
    has_look_ = false;
    return Status::Ok();
  }
  ASSIGN_OR_RETURN(token_, lexer_.Next());
  return Status::Ok();
}

Status Parser::Look() {
  if (has_look_) return Status::Ok();
  ASSIGN_OR_RETURN(look_, lexer_.Next());
  has_look_ = true;
  return Status::Ok();
}

Result<bool> Parser::SkipOp(std::string_view op) {
  if (!token_.IsOp(op)) return false;
  RETURN_IF_ERROR(Advance());
  return true;
}

Result<bool> Parser::SkipName(std::string_view name) {
  if (!token_.IsName(name)) return false;
  RETURN_IF_ERROR(Advance());
  return true;
}

Status Parser::ExpectOp(std::string_view op) {
  if (!token_.IsOp(op)) return Unexpected(op);
  return Advance();
}

Status Parser::ExpectName(std::string* out) {
  if (!token_.Is(TokenType::kName)) return Unexpected("a name");
  *out = token_.text;
  return Advance();
}

Status Parser::Expect(TokenType type) {
  if (!token_.Is(type)) {
    Token wanted;
    wanted.type = type;
    return Unexpected(Describe(wanted));
  }
  return Advance();
}

Status Parser::FailAt(int line, std::string_view what) const {
  return InvalidArgument("template line {}: {}", line, what);
}

Status Parser::Unexpected(std::string_view wanted) const {
  return Fail(fmt::format("expected '{}', got '{}'", wanted, Describe(token_)));
}

Status Parser::Count() {
  if (++num_nodes_ > kMaxNodes)
    return Exhausted("template line {}: the template has more than {} nodes", token_.line, kMaxNodes);
  return Status::Ok();
}

Status Parser::Grow(Expr* node, const ExprPtr& child) {
  if (child != nullptr) node->height = std::max(node->height, child->height + 1);
  if (node->height > max_depth_) {
    return Exhausted("template line {}: an expression is nested deeper than {}", node->line, max_depth_);
  }
  return Count();
}

Status Parser::CheckNesting() const {
  if (depth_ > max_depth_) {
    return Exhausted("template line {}: the template is nested deeper than {}", token_.line, max_depth_);
  }
  return Status::Ok();
}

}  // namespace cachalot::jinja
