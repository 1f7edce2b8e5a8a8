#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace cachalot {

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  stream_ << file << ':' << line << ": CHECK failed: " << condition << ' ';
}

CheckFailure::~CheckFailure() {
  std::fprintf(stderr, "%s\n", stream_.str().c_str());
  std::abort();
}

}  // namespace cachalot
