// The statements of jinja_parser.h.
#include "tokenizer/chat/jinja/jinja_parser.h"

namespace cachalot::jinja {
namespace {

bool IsReserved(std::string_view name) {
  return name == "true" || name == "false" || name == "none" || name == "True" || name == "False" ||
         name == "None";
}

}  // namespace

Status Parser::ParseBody(const Names& end_tags, Body* out) {
  std::unique_ptr<OutputStmt> output;
  const auto part = [&]() -> OutputStmt::Part& {
    if (output == nullptr) output = std::make_unique<OutputStmt>(token_.line);
    return output->parts.emplace_back();
  };
  const auto flush = [&] {
    if (output != nullptr) out->push_back(std::move(output));
  };
  for (;;) {
    RETURN_IF_ERROR(Count());
    switch (token_.type) {
      case TokenType::kData:
        part().text = std::move(token_.text);
        RETURN_IF_ERROR(Advance());
        break;
      case TokenType::kVariableBegin: {
        RETURN_IF_ERROR(Advance());
        const int line = token_.line;
        ASSIGN_OR_RETURN(ExprPtr expr, ParseTuple(true));
        if (output == nullptr) output = std::make_unique<OutputStmt>(line);
        output->parts.emplace_back().expr = std::move(expr);
        RETURN_IF_ERROR(Expect(TokenType::kVariableEnd));
        break;
      }
      case TokenType::kBlockBegin: {
        flush();
        RETURN_IF_ERROR(Advance());
        for (const std::string_view tag : end_tags) {
          if (token_.IsName(tag)) return Status::Ok();
        }
        ASSIGN_OR_RETURN(StmtPtr statement, ParseStatement());
        out->push_back(std::move(statement));
        RETURN_IF_ERROR(Expect(TokenType::kBlockEnd));
        break;
      }
      case TokenType::kEnd:
        flush();
        if (!end_tags.empty())
          return Fail(fmt::format("unexpected end of template, '{}' is missing", end_tags.back()));
        return Status::Ok();
      default:
        return Fail(fmt::format("unexpected '{}'", Describe(token_)));
    }
  }
}

Status Parser::ParseBlock(const Names& end_tags, Body* out) {
  Nesting nesting(this);
  RETURN_IF_ERROR(CheckNesting());
  RETURN_IF_ERROR(SkipOp(":").status());
  RETURN_IF_ERROR(Expect(TokenType::kBlockEnd));
  return ParseBody(end_tags, out);
}

Status Parser::ParseWholeBlock(std::string_view end_tag, Body* out) {
  RETURN_IF_ERROR(ParseBlock({end_tag}, out));
  return Advance();
}

Result<StmtPtr> Parser::ParseStatement() {
  if (!token_.Is(TokenType::kName)) return Fail("tag name expected");
  const std::string& tag = token_.text;
  if (tag == "set") return ParseSet();
  if (tag == "for") return ParseFor();
  if (tag == "if") return ParseIf();
  if (tag == "break" || tag == "continue") return ParseJump();
  if (tag == "macro") return ParseMacro();
  if (tag == "call") return ParseCallBlock();
  if (tag == "filter") return ParseFilterBlock();
  if (tag == "with") return ParseWith();
  if (tag == "print") return ParsePrint();
  if (tag == "generation") return ParseGeneration();
  if (tag == "block" || tag == "extends" || tag == "include" || tag == "import" || tag == "from" ||
      tag == "autoescape") {
    return Unsupported("template line {}: the tag '{}'", token_.line, tag);
  }
  return Fail(fmt::format("encountered unknown tag '{}'", tag));
}

Result<StmtPtr> Parser::ParseSet() {
  const int line = token_.line;
  RETURN_IF_ERROR(Advance());
  Target target;
  RETURN_IF_ERROR(ParseTarget(true, &target));
  ASSIGN_OR_RETURN(const bool assigns, SkipOp("="));
  if (assigns) {
    auto set = std::make_unique<SetStmt>(line);
    set->target = std::move(target);
    ASSIGN_OR_RETURN(set->value, ParseTuple(true));
    return StmtPtr(std::move(set));
  }
  auto set = std::make_unique<SetBlockStmt>(line);
  set->target = std::move(target);
  while (token_.IsOp("|")) {
    ASSIGN_OR_RETURN(set->filter, ParseFilter(std::move(set->filter)));
  }
  RETURN_IF_ERROR(ParseWholeBlock("endset", &set->body));
  return StmtPtr(std::move(set));
}

Result<StmtPtr> Parser::ParseFor() {
  auto loop = std::make_unique<ForStmt>(token_.line);
  RETURN_IF_ERROR(Advance());
  RETURN_IF_ERROR(ParseTarget(false, &loop->target));
  if (!token_.IsName("in")) return Unexpected("in");
  RETURN_IF_ERROR(Advance());
  ASSIGN_OR_RETURN(loop->iterable, ParseTuple(false));
  ASSIGN_OR_RETURN(const bool filtered, SkipName("if"));
  if (filtered) {
    ASSIGN_OR_RETURN(loop->filter, ParseExpression());
  }
  ASSIGN_OR_RETURN(loop->recursive, SkipName("recursive"));
  ++loop_depth_;
  const Status status = ParseBlock({"else", "endfor"}, &loop->body);
  --loop_depth_;
  RETURN_IF_ERROR(status);
  const bool has_else = token_.IsName("else");
  RETURN_IF_ERROR(Advance());
  if (has_else) RETURN_IF_ERROR(ParseWholeBlock("endfor", &loop->otherwise));
  return StmtPtr(std::move(loop));
}

Result<StmtPtr> Parser::ParseIf() {
  auto branch = std::make_unique<IfStmt>(token_.line);
  RETURN_IF_ERROR(Advance());
  for (;;) {
    auto& [test, body] = branch->branches.emplace_back();
    ASSIGN_OR_RETURN(test, ParseTuple(false));
    RETURN_IF_ERROR(ParseBlock({"elif", "else", "endif"}, &body));
    const bool again = token_.IsName("elif");
    const bool has_else = token_.IsName("else");
    RETURN_IF_ERROR(Advance());
    if (again) continue;
    if (has_else) RETURN_IF_ERROR(ParseWholeBlock("endif", &branch->otherwise));
    return StmtPtr(std::move(branch));
  }
}

Result<StmtPtr> Parser::ParseWith() {
  auto with = std::make_unique<WithStmt>(token_.line);
  RETURN_IF_ERROR(Advance());
  while (!token_.Is(TokenType::kBlockEnd)) {
    if (!with->assignments.empty()) RETURN_IF_ERROR(ExpectOp(","));
    auto& [target, value] = with->assignments.emplace_back();
    RETURN_IF_ERROR(ParseTarget(false, &target));
    RETURN_IF_ERROR(ExpectOp("="));
    ASSIGN_OR_RETURN(value, ParseExpression());
  }
  RETURN_IF_ERROR(ParseWholeBlock("endwith", &with->body));
  return StmtPtr(std::move(with));
}

Status Parser::ParseSignature(FunctionDef* function) {
  RETURN_IF_ERROR(ExpectOp("("));
  while (!token_.IsOp(")")) {
    if (!function->params.empty()) RETURN_IF_ERROR(ExpectOp(","));
    std::string name;
    RETURN_IF_ERROR(ExpectName(&name));
    if (IsReserved(name)) return Fail(fmt::format("can't assign to '{}'", name));
    for (const std::string& other : function->params) {
      if (other == name) return Fail(fmt::format("duplicate argument '{}'", name));
    }
    ASSIGN_OR_RETURN(const bool has_default, SkipOp("="));
    if (has_default) {
      ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      function->defaults.push_back(std::move(value));
    } else if (!function->defaults.empty()) {
      return Fail("non-default argument follows default argument");
    }
    function->params.push_back(std::move(name));
  }
  return Advance();
}

Status Parser::ParseFunctionBody(std::string_view end_tag, FunctionDef* function) {
  const int outer_loops = loop_depth_;
  loop_depth_ = 0;  // a loop around a macro cannot be left from inside it
  const Status status = ParseWholeBlock(end_tag, &function->body);
  loop_depth_ = outer_loops;
  return status;
}

Result<StmtPtr> Parser::ParseMacro() {
  auto macro = std::make_unique<MacroStmt>(token_.line);
  macro->function.line = token_.line;
  RETURN_IF_ERROR(Advance());
  RETURN_IF_ERROR(ExpectName(&macro->function.name));
  if (IsReserved(macro->function.name))
    return Fail(fmt::format("can't assign to '{}'", macro->function.name));
  RETURN_IF_ERROR(ParseSignature(&macro->function));
  RETURN_IF_ERROR(ParseFunctionBody("endmacro", &macro->function));
  return StmtPtr(std::move(macro));
}

Result<StmtPtr> Parser::ParseCallBlock() {
  auto block = std::make_unique<CallBlockStmt>(token_.line);
  block->function.line = token_.line;
  RETURN_IF_ERROR(Advance());
  if (token_.IsOp("(")) RETURN_IF_ERROR(ParseSignature(&block->function));
  ASSIGN_OR_RETURN(block->call, ParseExpression());
  if (block->call->kind != ExprKind::kCall) return FailAt(block->line, "expected call");
  RETURN_IF_ERROR(ParseFunctionBody("endcall", &block->function));
  return StmtPtr(std::move(block));
}

Result<StmtPtr> Parser::ParseGeneration() {
  auto block = std::make_unique<CallBlockStmt>(token_.line);
  block->function.line = token_.line;
  RETURN_IF_ERROR(Advance());
  RETURN_IF_ERROR(ParseFunctionBody("endgeneration", &block->function));
  return StmtPtr(std::move(block));
}

Result<StmtPtr> Parser::ParseFilterBlock() {
  auto block = std::make_unique<FilterBlockStmt>(token_.line);
  RETURN_IF_ERROR(Advance());
  ASSIGN_OR_RETURN(block->filter, ParseFilter(nullptr));
  while (token_.IsOp("|")) {
    ASSIGN_OR_RETURN(block->filter, ParseFilter(std::move(block->filter)));
  }
  RETURN_IF_ERROR(ParseWholeBlock("endfilter", &block->body));
  return StmtPtr(std::move(block));
}

Result<StmtPtr> Parser::ParsePrint() {
  auto output = std::make_unique<OutputStmt>(token_.line);
  RETURN_IF_ERROR(Advance());
  while (!token_.Is(TokenType::kBlockEnd)) {
    if (!output->parts.empty()) RETURN_IF_ERROR(ExpectOp(","));
    ASSIGN_OR_RETURN(ExprPtr expr, ParseExpression());
    output->parts.emplace_back().expr = std::move(expr);
  }
  return StmtPtr(std::move(output));
}

Result<StmtPtr> Parser::ParseJump() {
  const StmtKind kind = token_.text == "break" ? StmtKind::kBreak : StmtKind::kContinue;
  if (loop_depth_ == 0) return Fail(fmt::format("'{}' outside loop", token_.text));
  StmtPtr jump = std::make_unique<JumpStmt>(kind, token_.line);
  RETURN_IF_ERROR(Advance());
  return jump;
}

Status Parser::ParseTarget(bool with_namespace, Target* out) {
  // One item, or several with commas: then a tuple, also with a comma at the end.
  uint32_t leaves = 0;
  std::vector<Target> items;
  bool is_tuple = false;
  for (;;) {
    if (token_.Is(TokenType::kBlockEnd) || token_.Is(TokenType::kVariableEnd) || token_.IsOp(")")) break;
    RETURN_IF_ERROR(ParseTargetItem(with_namespace, 0, &leaves, &items.emplace_back()));
    if (!token_.IsOp(",")) break;
    is_tuple = true;
    RETURN_IF_ERROR(Advance());
  }
  if (!is_tuple) {
    if (items.empty()) return Unexpected("a name");
    *out = std::move(items[0]);
    return Status::Ok();
  }
  out->kind = Target::Kind::kTuple;
  out->line = token_.line;
  out->items = std::move(items);
  return Status::Ok();
}

Status Parser::ParseTargetItem(bool with_namespace, int depth, uint32_t* leaves, Target* out) {
  if (depth > max_depth_) return Exhausted("template line {}: a target is nested too deep", token_.line);
  RETURN_IF_ERROR(Count());
  out->line = token_.line;
  if (token_.IsOp("(")) {
    RETURN_IF_ERROR(Advance());
    bool is_tuple = token_.IsOp(")");
    while (!token_.IsOp(")")) {
      RETURN_IF_ERROR(ParseTargetItem(false, depth + 1, leaves, &out->items.emplace_back()));
      if (!token_.IsOp(",")) break;
      is_tuple = true;
      RETURN_IF_ERROR(Advance());
    }
    RETURN_IF_ERROR(ExpectOp(")"));
    if (!is_tuple) {
      Target only = std::move(out->items[0]);
      *out = std::move(only);
      return Status::Ok();
    }
    out->kind = Target::Kind::kTuple;
    return Status::Ok();
  }
  RETURN_IF_ERROR(ExpectName(&out->name));
  if (IsReserved(out->name)) return Fail(fmt::format("can't assign to '{}'", out->name));
  out->leaf = (*leaves)++;
  if (with_namespace && token_.IsOp(".")) {
    RETURN_IF_ERROR(Advance());
    RETURN_IF_ERROR(ExpectName(&out->attr));
    out->kind = Target::Kind::kNamespaceAttr;
  }
  return Status::Ok();
}

}  // namespace cachalot::jinja
