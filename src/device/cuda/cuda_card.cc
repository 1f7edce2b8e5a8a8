#include "device/cuda/cuda_card.h"

#include <cuda_runtime_api.h>

#include <atomic>

#include "device/cuda/cuda_error.h"

namespace cachalot {
namespace {

constexpr int kMaxDevices = 64;

CudaCard Ask(int device) {
  int major = 0, minor = 0, shared = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  return {major * 10 + minor, shared};
}

}  // namespace

CudaCard CurrentCard() {
  // A card in one word, so that whoever asks first may write it without a lock: compute capability, then bytes.
  static std::atomic<uint64_t> known[kMaxDevices];
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  if (device < 0 || device >= kMaxDevices) return Ask(device);
  if (const uint64_t word = known[device].load(std::memory_order_relaxed); word != 0) {
    return {static_cast<int>(word >> 32), static_cast<int64_t>(word & 0xffffffff)};
  }
  const CudaCard card = Ask(device);
  known[device].store(static_cast<uint64_t>(card.compute_capability) << 32 | static_cast<uint64_t>(card.shared_bytes),
                      std::memory_order_relaxed);
  return card;
}

CudaStatus AllowSharedBytes(const void* kernel, int64_t bytes, const char* op) {
  const CudaCard card = CurrentCard();
  if (bytes > card.shared_bytes) {
    return CudaFail(CudaFault::kUnsupported, "%s: %lld bytes of shared memory a block, the card (compute capability %d.%d) has %lld",
                    op, static_cast<long long>(bytes), card.compute_capability / 10, card.compute_capability % 10,
                    static_cast<long long>(card.shared_bytes));
  }
  return CudaChecked(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), op);
}

}  // namespace cachalot
