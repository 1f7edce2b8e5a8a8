// Template text to tokens, with trim_blocks and lstrip_blocks on: whitespace control happens here and nowhere
// else.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_value.h"

namespace cachalot::jinja {

enum class TokenType : uint8_t {
  kEnd,
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,  // text is the operator
};

struct Token {
  TokenType type = TokenType::kEnd;
  int line = 1;
  std::string text;  // of names, data and operators; of strings with the escapes undone
  Int integer = 0;
  double number = 0;

  bool Is(TokenType t) const { return type == t; }
  bool IsOp(std::string_view op) const { return type == TokenType::kOperator && text == op; }
  bool IsName(std::string_view name) const { return type == TokenType::kName && text == name; }
};

// As an error message calls it.
std::string Describe(const Token& token);

class Lexer {
 public:
  explicit Lexer(std::string_view source);

  // The next token; kEnd for ever at the end.
  Result<Token> Next();

 private:
  enum class State : uint8_t { kRoot, kVariable, kBlock };

  Status Fill();
  Status Root();
  Status Comment();
  Status Raw(char sign);
  Status Code();
  Status ReadNumber();
  Status ReadString();
  Status ReadOperator();
  bool ReadName();
  bool TakeEnd();
  // The data before a tag, with the whitespace removed that the tag's sign asks for.
  void AddData(size_t begin, size_t end, char sign, bool is_variable);
  void Emit(TokenType type, std::string text);
  void Advance(size_t to);
  size_t SkipSpace(size_t pos) const;
  Status Fail(std::string_view what) const;

  std::string source_;  // newlines are \n, without the one at the end
  size_t pos_ = 0;
  int line_ = 1;
  State state_ = State::kRoot;
  bool line_starting_ = true;  // the last tag ended with a newline
  std::vector<char> brackets_;
  std::deque<Token> ready_;
};

}  // namespace cachalot::jinja
