#include "device/cuda/cuda_library.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/file.h"

namespace cachalot {
namespace {

CudaDeviceInfo Card(const char* name, int32_t capability, int64_t shared_bytes) {
  CudaDeviceInfo card;
  std::strncpy(card.name, name, sizeof(card.name) - 1);
  card.compute_capability = capability;
  card.shared_bytes_per_block = shared_bytes;
  return card;
}

TEST(CheckCudaCard, TakesTheCardsThatTheKernelsRunOn) {
  CudaBackend backend;
  EXPECT_TRUE(CheckCudaCard(backend, Card("H200", 90, 232448)).ok());
  backend.has_ptx = true;
  EXPECT_TRUE(CheckCudaCard(backend, Card("A100", 80, 166912)).ok());
  EXPECT_TRUE(CheckCudaCard(backend, Card("B200", 100, 232448)).ok());
}

TEST(CheckCudaCard, RefusesOthersWithCardValueAndLimit) {
  CudaBackend backend;
  const auto refusal = [&](const CudaDeviceInfo& card) {
    const Status status = CheckCudaCard(backend, card);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    return std::string(status.message());
  };
  EXPECT_EQ(refusal(Card("A100", 80, 166912)),
            "A100 (compute capability 8.0): libcachalot_cuda.so has code for 9.0 alone (CACHALOT_CUDA_PTX80 adds code for others)");
  backend.has_ptx = true;
  EXPECT_EQ(refusal(Card("T4", 75, 65536)), "T4 (compute capability 7.5): the oldest that works is 8.0");
  EXPECT_EQ(refusal(Card("RTX 4090", 89, 101376)),
            "RTX 4090 (compute capability 8.9): 101376 bytes of shared memory a block, kernels take up to 166912");
}

// Any shared library will do: a cut one must be refused before the loader maps it.
TEST(LoadCudaBackend, RefusesAFileThatIsCutOff) {
  const auto own = File::Open("/proc/self/exe");
  ASSERT_TRUE(own.ok());
  std::vector<std::byte> bytes(static_cast<size_t>((*own)->size()));
  ASSERT_TRUE((*own)->ReadAt(0, bytes).ok());
  const std::string path = testing::TempDir() + "cut_off.so";
  for (const size_t kept : {bytes.size() - 1, bytes.size() / 2, size_t{4096}, size_t{70}, size_t{10}, size_t{0}}) {
    ASSERT_TRUE(WriteFileAtomically(path, {reinterpret_cast<const char*>(bytes.data()), kept}).ok());
    const auto backend = LoadCudaBackend(path);
    ASSERT_FALSE(backend.ok());
    EXPECT_EQ(backend.status().code(), StatusCode::kCorrupt) << kept << ": " << backend.status().ToString();
  }
  EXPECT_EQ(LoadCudaBackend("/dev/null/none.so").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace cachalot
