#include "device/cuda/cuda_library.h"

#include <gtest/gtest.h>

#include <cstring>

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

}  // namespace
}  // namespace cachalot
