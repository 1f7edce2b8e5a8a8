// JsonScanner: finds where a JSON value ends that arrives byte by byte. It does not check the value: what is
// between brackets may be anything.
#pragma once

#include <cstdint>

namespace cachalot {

inline bool IsJsonSpace(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

class JsonScanner {
 public:
  enum class Step {
    kMore,
    kEndsWith,    // the byte is the value's last
    kEndsBefore,  // the value ended before it (a number, true, …)
    kBad,         // no value begins like that
  };

  Step Push(char c) {
    if (in_string_) {
      if (escaped_) escaped_ = false;
      else if (c == '\\') escaped_ = true;
      else if (c == '"') in_string_ = false;
      return !in_string_ && depth_ == 0 ? Step::kEndsWith : Step::kMore;
    }
    if (c == '"') {
      if (in_literal_) return Step::kEndsBefore;
      in_string_ = true;
      return Step::kMore;
    }
    if (depth_ == 0) {
      if (c == '{' || c == '[') {
        if (in_literal_) return Step::kEndsBefore;
        ++depth_;
        return Step::kMore;
      }
      const bool literal = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
                           c == '+' || c == '.';
      if (!literal) return in_literal_ ? Step::kEndsBefore : Step::kBad;
      in_literal_ = true;
      return Step::kMore;
    }
    if (c == '{' || c == '[') ++depth_;
    if ((c == '}' || c == ']') && --depth_ == 0) return Step::kEndsWith;
    return Step::kMore;
  }
  bool in_string() const { return in_string_; }

 private:
  int64_t depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
  bool in_literal_ = false;
};

}  // namespace cachalot
