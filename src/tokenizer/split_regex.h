// SplitRegex: a compiled regular expression that finds its matches in a text, one after another.
// Invariant: immutable, so shared between threads; each thread brings its own RegexScratch. Never fails on a
// long text for want of stack; an expression that backtracks without bound is an error, not a hang.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace cachalot {

// What matching needs besides the expression. Cheap to make, not to be shared between threads.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class SplitRegex;
  pcre2_real_match_data_8* match_data_ = nullptr;
  pcre2_real_match_context_8* context_ = nullptr;
  pcre2_real_jit_stack_8* jit_stack_ = nullptr;  // only once the machine stack's 32 KB were too few
};

class SplitRegex {
 public:
  // In the syntax of tokenizer.json, see regex_syntax.h.
  static Result<SplitRegex> Compile(std::string_view pattern);
  SplitRegex(SplitRegex&&) noexcept = default;
  SplitRegex& operator=(SplitRegex&&) noexcept = default;

  struct Match {
    bool found = false;
    size_t begin = 0;
    size_t end = 0;
  };
  // The first match that begins at `from` or later. The text must be valid UTF-8, and `from` at a character.
  Status Find(std::string_view text, size_t from, RegexScratch* scratch, Match* match) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  explicit SplitRegex(pcre2_real_code_8* code, std::string pattern);

  std::unique_ptr<pcre2_real_code_8, Free> code_;
  bool jit_ = false;
  std::string pattern_;
};

}  // namespace cachalot
