// Without a GPU, a test program says so once instead of skipping every test.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace cachalot {

inline std::string& NoGpuReason() {
  static std::string reason;
  return reason;
}

// For main(): reason "" when there is a GPU.
inline int RunGpuTests(const std::string& reason) {
  NoGpuReason() = reason;
  if (!reason.empty()) testing::GTEST_FLAG(filter) = "GpuPresence.*";
  return RUN_ALL_TESTS();
}

TEST(GpuPresence, ThereIsOne) {
  if (!NoGpuReason().empty()) GTEST_SKIP() << NoGpuReason();
}

}  // namespace cachalot
