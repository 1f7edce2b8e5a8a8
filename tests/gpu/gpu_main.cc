#include <gtest/gtest.h>

#include "gpu_testing.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const cachalot::Gpu& gpu = cachalot::Gpu::Get();
  std::printf("GPU tests on %s\n", gpu.backend != nullptr ? gpu.info.name : gpu.reason.c_str());
  return RUN_ALL_TESTS();
}
