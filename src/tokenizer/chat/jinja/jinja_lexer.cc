#include "tokenizer/chat/jinja/jinja_lexer.h"

#include <algorithm>

#include "tokenizer/chat/jinja/unicode.h"

namespace cachalot::jinja {

std::string Describe(const Token& token) {
  switch (token.type) {
    case TokenType::kEnd:
      return "end of template";
    case TokenType::kData:
      return "template text";
    case TokenType::kVariableBegin:
      return "{{";
    case TokenType::kVariableEnd:
      return "end of print statement";
    case TokenType::kBlockBegin:
      return "{%";
    case TokenType::kBlockEnd:
      return "end of statement block";
    case TokenType::kString:
      return "string";
    case TokenType::kInteger:
      return "integer";
    case TokenType::kFloat:
      return "float";
    case TokenType::kName:
    case TokenType::kOperator:
      return token.text.substr(0, 60);
  }
  return "";
}

Lexer::Lexer(std::string_view source) {
  source_.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      source_ += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      source_ += source[i];
    }
  }
  if (source_.ends_with('\n')) source_.pop_back();
}

Status Lexer::Fail(std::string_view what) const {
  return InvalidArgument("template line {}: {}", line_, what);
}

void Lexer::Emit(TokenType type, std::string text) {
  Token token;
  token.type = type;
  token.line = line_;
  token.text = std::move(text);
  ready_.push_back(std::move(token));
}

void Lexer::Advance(size_t to) {
  line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(pos_),
                                       source_.begin() + static_cast<ptrdiff_t>(to), '\n'));
  pos_ = to;
}

size_t Lexer::SkipSpace(size_t pos) const {
  while (pos < source_.size()) {
    size_t size;
    if (!IsSpace(DecodeUtf8(source_, pos, &size))) break;
    pos += size;
  }
  return pos;
}

Result<Token> Lexer::Next() {
  while (ready_.empty()) {
    if (pos_ >= source_.size()) {
      Token end;
      end.line = line_;
      return end;
    }
    RETURN_IF_ERROR(state_ == State::kRoot ? Root() : Code());
  }
  Token token = std::move(ready_.front());
  ready_.pop_front();
  return token;
}

void Lexer::AddData(size_t begin, size_t end, char sign, bool is_variable) {
  std::string_view text = std::string_view(source_).substr(begin, end - begin);
  if (sign == '-') {
    while (!text.empty()) {
      const size_t last = PreviousUtf8(text, text.size());
      size_t size;
      if (!IsSpace(DecodeUtf8(text, last, &size))) break;
      text = text.substr(0, last);
    }
  } else if (sign != '+' && !is_variable) {
    const size_t newline = text.rfind('\n');
    const size_t line_begin = newline == text.npos ? 0 : newline + 1;
    if ((line_begin > 0 || line_starting_) && SkipSpace(begin + line_begin) >= end)
      text = text.substr(0, line_begin);
  }
  if (!text.empty()) Emit(TokenType::kData, std::string(text));
}

Status Lexer::Root() {
  size_t tag = pos_;
  for (;; ++tag) {
    tag = source_.find('{', tag);
    if (tag == source_.npos || tag + 1 == source_.size()) {
      Emit(TokenType::kData, source_.substr(pos_));
      Advance(source_.size());
      return Status::Ok();
    }
    const char next = source_[tag + 1];
    if (next == '{' || next == '%' || next == '#') break;
  }
  const char type = source_[tag + 1];
  char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
  if (sign != '-' && sign != '+') sign = '\0';
  AddData(pos_, tag, sign, type == '{');
  const size_t inside = tag + 2 + (sign != '\0');
  Advance(inside);
  if (type == '#') return Comment();
  if (type == '%') {
    // {% raw %} is a matter of the lexer.
    size_t at = SkipSpace(inside);
    if (source_.compare(at, 3, "raw") == 0) {
      at = SkipSpace(at + 3);
      if (source_.compare(at, 3, "-%}") == 0) {
        Advance(SkipSpace(at + 3));
        return Raw('-');
      }
      if (source_.compare(at, 2, "%}") == 0) {
        Advance(at + 2);
        return Raw('\0');
      }
    }
  }
  state_ = type == '{' ? State::kVariable : State::kBlock;
  brackets_.clear();
  Emit(type == '{' ? TokenType::kVariableBegin : TokenType::kBlockBegin, "");
  return Status::Ok();
}

Status Lexer::Comment() {
  if (pos_ == source_.size()) return Status::Ok();  // jinja2 lets a comment that ends with the template pass
  const size_t end = source_.find("#}", pos_);
  if (end == source_.npos) return Fail("missing end of comment tag");
  const char sign =
      end > pos_ && (source_[end - 1] == '-' || source_[end - 1] == '+') ? source_[end - 1] : '\0';
  size_t after = end + 2;
  if (sign == '-') {
    after = SkipSpace(after);
  } else if (sign == '\0' && after < source_.size() && source_[after] == '\n') {
    ++after;
  }
  line_starting_ = source_[after - 1] == '\n';
  Advance(after);
  return Status::Ok();
}

Status Lexer::Raw(char begin_sign) {
  if (pos_ == source_.size()) return Status::Ok();
  line_starting_ = begin_sign == '-' && source_[pos_ - 1] == '\n';
  for (size_t tag = source_.find("{%", pos_); tag != source_.npos; tag = source_.find("{%", tag + 1)) {
    size_t at = tag + 2;
    char sign = at < source_.size() ? source_[at] : '\0';
    if (sign != '-' && sign != '+') sign = '\0';
    at = SkipSpace(at + (sign != '\0'));
    if (at > source_.size() || source_.compare(at, 6, "endraw") != 0) continue;
    at = SkipSpace(at + 6);
    size_t after;
    if (source_.compare(at, 3, "-%}") == 0) {
      after = SkipSpace(at + 3);
    } else if (source_.compare(at, 3, "+%}") == 0) {
      after = at + 3;
    } else if (source_.compare(at, 2, "%}") == 0) {
      after = at + 2;
      if (after < source_.size() && source_[after] == '\n') ++after;
    } else {
      continue;
    }
    AddData(pos_, tag, sign, false);
    line_starting_ = source_[after - 1] == '\n';
    Advance(after);
    return Status::Ok();
  }
  return Fail("missing end of raw directive");
}

bool Lexer::TakeEnd() {
  if (!brackets_.empty()) return false;
  const std::string_view rest = std::string_view(source_).substr(pos_);
  size_t after;
  if (state_ == State::kVariable) {
    if (rest.starts_with("-}}"))
      after = SkipSpace(pos_ + 3);
    else if (rest.starts_with("}}"))
      after = pos_ + 2;
    else
      return false;
    Emit(TokenType::kVariableEnd, "");
  } else {
    if (rest.starts_with("-%}"))
      after = SkipSpace(pos_ + 3);
    else if (rest.starts_with("+%}"))
      after = pos_ + 3;
    else if (rest.starts_with("%}"))
      after = pos_ + 2 + (rest.size() > 2 && rest[2] == '\n');
    else
      return false;
    Emit(TokenType::kBlockEnd, "");
  }
  state_ = State::kRoot;
  line_starting_ = source_[after - 1] == '\n';
  Advance(after);
  return true;
}

Status Lexer::Code() {
  if (TakeEnd()) return Status::Ok();
  const size_t word = SkipSpace(pos_);
  if (word > pos_) {
    Advance(word);
    return Status::Ok();
  }
  if (source_[pos_] >= '0' && source_[pos_] <= '9') return ReadNumber();
  if (ReadName()) return Status::Ok();
  if (source_[pos_] == '\'' || source_[pos_] == '"') return ReadString();
  return ReadOperator();
}

bool Lexer::ReadName() {
  size_t end = pos_;
  while (end < source_.size()) {
    size_t size;
    const uint32_t code = DecodeUtf8(source_, end, &size);
    if (code != '_' && !IsAlnum(code)) break;
    end += size;
  }
  if (end == pos_) return false;
  Emit(TokenType::kName, source_.substr(pos_, end - pos_));
  Advance(end);
  return true;
}

Status Lexer::ReadOperator() {
  static constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                    "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                    ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
  const std::string_view rest = std::string_view(source_).substr(pos_);
  for (const std::string_view op : kOperators) {
    if (!rest.starts_with(op)) continue;
    const char c = op[0];
    if (c == '{') brackets_.push_back('}');
    if (c == '(') brackets_.push_back(')');
    if (c == '[') brackets_.push_back(']');
    if (c == '}' || c == ')' || c == ']') {
      if (brackets_.empty()) return Fail(fmt::format("unexpected '{}'", c));
      if (brackets_.back() != c)
        return Fail(fmt::format("unexpected '{}', expected '{}'", c, brackets_.back()));
      brackets_.pop_back();
    }
    Emit(TokenType::kOperator, std::string(op));
    Advance(pos_ + op.size());
    return Status::Ok();
  }
  return Fail(fmt::format("unexpected char {}", static_cast<int>(static_cast<uint8_t>(source_[pos_]))));
}

}  // namespace cachalot::jinja
