// Tokens to the syntax tree: Jinja's grammar with the loop controls and Hugging Face's generation blocks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_ast.h"
#include "tokenizer/chat/jinja/jinja_lexer.h"

namespace cachalot::jinja {

struct ParsedTemplate {
  Body body;
  uint32_t num_texts = 0;  // string constants
};

class Parser {
 public:
  Parser(std::string_view source, int max_depth) : lexer_(source), max_depth_(max_depth) {}

  Result<ParsedTemplate> Parse();

 private:
  using Names = std::vector<std::string_view>;

  // Statements (jinja_parser_statements.cc)
  Status ParseBody(const Names& end_tags, Body* out);
  // The rest of an opening tag, the body, and up to the name of the tag that ended it.
  Status ParseBlock(const Names& end_tags, Body* out);
  // The same, and the end tag is consumed.
  Status ParseWholeBlock(std::string_view end_tag, Body* out);
  Result<StmtPtr> ParseStatement();
  Result<StmtPtr> ParseSet();
  Result<StmtPtr> ParseFor();
  Result<StmtPtr> ParseIf();
  Result<StmtPtr> ParseWith();
  Result<StmtPtr> ParseMacro();
  Result<StmtPtr> ParseCallBlock();
  Result<StmtPtr> ParseGeneration();
  Result<StmtPtr> ParseFilterBlock();
  Result<StmtPtr> ParsePrint();
  Result<StmtPtr> ParseJump();
  Status ParseSignature(FunctionDef* function);
  Status ParseFunctionBody(std::string_view end_tag, FunctionDef* function);
  Status ParseTarget(bool with_namespace, Target* out);
  Status ParseTargetItem(bool with_namespace, int depth, uint32_t* leaves, Target* out);

  // Expressions (jinja_parser_expressions.cc, jinja_parser_calls.cc)
  Result<ExprPtr> ParseExpression(bool with_condition = true);
  // An expression, or a tuple without parentheses.
  Result<ExprPtr> ParseTuple(bool with_condition, bool in_parentheses = false);
  Result<ExprPtr> ParseCondition();
  Result<ExprPtr> ParseOr();
  Result<ExprPtr> ParseAnd();
  Result<ExprPtr> ParseNot();
  Result<ExprPtr> ParseCompare();
  Result<ExprPtr> ParseSum();
  Result<ExprPtr> ParseConcat();
  Result<ExprPtr> ParseProduct();
  Result<ExprPtr> ParsePower();
  Result<ExprPtr> ParseUnary(bool with_filter);
  Result<ExprPtr> ParsePrimary();
  Result<ExprPtr> ParsePostfix(ExprPtr object);
  Result<ExprPtr> ParseFilterChain(ExprPtr object);
  Result<ExprPtr> ParseSubscript(ExprPtr object);
  Result<ExprPtr> ParseCall(ExprPtr callee);
  Result<ExprPtr> ParseFilter(ExprPtr input);
  Result<ExprPtr> ParseTest(ExprPtr input);
  Result<ExprPtr> ParseListLiteral();
  Result<ExprPtr> ParseDictLiteral();
  Status ParseArgs(ArgList* out);
  Result<ExprPtr> TextConst(std::string text, int line);

  // Bookkeeping
  Status Advance();
  Status Look();  // fills look_
  Result<bool> SkipOp(std::string_view op);
  Result<bool> SkipName(std::string_view name);
  Status ExpectOp(std::string_view op);
  Status ExpectName(std::string* out);
  Status Expect(TokenType type);
  Status Fail(std::string_view what) const { return FailAt(token_.line, what); }
  Status FailAt(int line, std::string_view what) const;
  Status Unexpected(std::string_view wanted) const;
  // Counts the node and its height over its children.
  Status Grow(Expr* node, const ExprPtr& child);
  Status Count();
  Result<ExprPtr> Binary(BinaryOp op, ExprPtr left, ExprPtr right, int line);

  // Guards the recursion of the parser itself.
  struct Nesting {
    explicit Nesting(Parser* p) : parser(p) { ++parser->depth_; }
    ~Nesting() { --parser->depth_; }
    Parser* parser;
  };
  Status CheckNesting() const;

  Lexer lexer_;
  const int max_depth_;
  Token token_;
  Token look_;
  bool has_look_ = false;
  int depth_ = 0;
  int num_nodes_ = 0;
  int loop_depth_ = 0;  // loops around the statement, inside the innermost macro
  uint32_t num_texts_ = 0;
};

}  // namespace cachalot::jinja
