#include "tokenizer/split_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "formats/text.h"
#include "tokenizer/regex_syntax.h"

namespace cachalot {
namespace {

// Backtracking steps of one match. Ours need about as many as the run of spaces they look at is long.
constexpr uint32_t kMatchLimit = 200'000'000;
constexpr uint32_t kHeapLimitKib = 256 << 10;
constexpr size_t kJitStackStart = 64 << 10;
constexpr size_t kJitStackMax = 64 << 20;

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

struct CompileContext {
  CompileContext() { pcre2_set_newline(context, PCRE2_NEWLINE_LF); }
  ~CompileContext() { pcre2_compile_context_free(context); }
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
};

}  // namespace

RegexScratch::RegexScratch()
    : match_data_(pcre2_match_data_create(1, nullptr)), context_(pcre2_match_context_create(nullptr)) {
  pcre2_set_match_limit(context_, kMatchLimit);
  pcre2_set_heap_limit(context_, kHeapLimitKib);
}

RegexScratch::~RegexScratch() {
  pcre2_match_data_free(match_data_);
  pcre2_match_context_free(context_);
  pcre2_jit_stack_free(jit_stack_);
}

void SplitRegex::Free::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

SplitRegex::SplitRegex(pcre2_real_code_8* code, std::string pattern)
    : code_(code), pattern_(std::move(pattern)) {
  jit_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
}

Result<SplitRegex> SplitRegex::Compile(std::string_view pattern) {
  ASSIGN_OR_RETURN(const std::string translated, TranslateRegex(pattern));
  const CompileContext context;
  int error = 0;
  size_t error_offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                                   &error_offset, context.context);
  if (code == nullptr) {
    return InvalidArgument("regular expression '{}': {}", Printable(pattern, 200), ErrorText(error));
  }
  return SplitRegex(code, std::string(pattern));
}

Status SplitRegex::Find(std::string_view text, size_t from, RegexScratch* scratch, Match* match) const {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  // Checking the text again at each call would be quadratic; it is valid.
  constexpr uint32_t kOptions = PCRE2_NO_UTF_CHECK;
  int rc = PCRE2_ERROR_JIT_BADOPTION;
  if (jit_) {
    rc = pcre2_jit_match(code_.get(), subject, text.size(), from, 0, scratch->match_data_, scratch->context_);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && scratch->jit_stack_ == nullptr) {
      scratch->jit_stack_ = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);
      pcre2_jit_stack_assign(scratch->context_, nullptr, scratch->jit_stack_);
      rc = pcre2_jit_match(code_.get(), subject, text.size(), from, 0, scratch->match_data_,
                           scratch->context_);
    }
  }
  if (!jit_ || rc == PCRE2_ERROR_JIT_STACKLIMIT) {
    rc = pcre2_match(code_.get(), subject, text.size(), from, kOptions | PCRE2_NO_JIT, scratch->match_data_,
                     scratch->context_);
  }
  match->found = rc >= 0;
  if (rc == PCRE2_ERROR_NOMATCH) return Status::Ok();
  if (rc < 0) {
    return Exhausted("regular expression '{}' on {} bytes: {}", Printable(pattern_, 200), text.size() - from,
                     ErrorText(rc));
  }
  const size_t* bounds = pcre2_get_ovector_pointer(scratch->match_data_);
  match->begin = bounds[0];
  match->end = bounds[1];
  return Status::Ok();
}

}  // namespace cachalot
