#include "gpu_presence.h"
#include "gpu_testing.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const cachalot::Gpu& gpu = cachalot::Gpu::Get();
  const bool found = gpu.backend != nullptr && gpu.reason.empty();
  std::printf("GPU tests on %s\n", found ? gpu.info.name : gpu.reason.c_str());
  const int rc = cachalot::RunGpuTests(found ? "" : gpu.reason);
  if (const std::string left_out = cachalot::LeftOutCases(); !left_out.empty()) std::printf("%s\n", left_out.c_str());
  return rc;
}
