// Tiles of the cache brought to shared memory by the copy engine (sm_90): barriers in shared memory that count bytes, and the
// tensor map under which all keys and values of a layer are rows of one matrix.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "device/cuda/cuda_exec.h"
#include "kernels/common/paged_kv.h"

namespace cachalot {

inline constexpr int kTmaRun = 16;  // rows of a copy

// Rows of k_dim 16-bit values from kv.data on, as far as memory goes; a copy brings kTmaRun of them as `panels` panels of 64
// columns, each row of a panel 128 bytes, pieces swizzled as Swizzled<128> does. False where the driver cannot.
bool MakeCacheTensorMap(const PagedKv& kv, int panels, CUtensorMap* map);

#ifdef __CUDACC__

__device__ __forceinline__ void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
// What was initialised is there for the copy engine too; a barrier of the block's threads follows.
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
__device__ __forceinline__ void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void ArriveExpecting(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}
// Until the phase of this parity is over.
__device__ __forceinline__ void WaitBarrier(uint32_t barrier, uint32_t parity) {
#ifdef CACHALOT_WATCHDOG
  const long long start = clock64();
#endif
  uint32_t done = 0;
  while (true) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    if (done != 0) break;
#ifdef CACHALOT_WATCHDOG
    if (clock64() - start > 1000000000) __trap();
#endif
  }
}
// Rows `row` .. row + kTmaRun - 1, from column 64 `panel` on.
__device__ __forceinline__ void CopyRows(uint32_t shared, const CUtensorMap* map, int row, int panel, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];\n" ::"r"(shared),
      "l"(map), "r"(0), "r"(row), "r"(panel), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}

#endif

}  // namespace cachalot
