// CHECK: programmer errors only (never reachable from a file, a request or memory pressure). Prints and aborts.
#pragma once

#include <sstream>

namespace cachalot {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Makes `cond ? void : stream` type-check.
struct CheckVoidify {
  void operator&(std::ostream&) {}
};

}  // namespace cachalot

#define CHECK(condition)                         \
  (__builtin_expect(static_cast<bool>(condition), 1)) \
      ? (void)0                                  \
      : ::cachalot::CheckVoidify() & ::cachalot::CheckFailure(__FILE__, __LINE__, #condition).stream()

// Checked in builds with CACHALOT_DCHECK (Debug and relassert); free otherwise.
#ifdef CACHALOT_DCHECK
#define DCHECK(condition) CHECK(condition)
#else
#define DCHECK(condition) CHECK(true || (condition))
#endif
