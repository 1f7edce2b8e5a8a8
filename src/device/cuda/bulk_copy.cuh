// Hopper's bulk copies, the barriers that count their bytes, and clusters of blocks (sm_90) in C++ clothes.
//
// Addresses are those of shared memory (SharedAddress); a barrier is 8 bytes. What a bulk copy has brought may be read by wgmma
// and by ordinary loads once its barrier's phase has ended.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace cachalot {

__device__ __forceinline__ void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After the last InitBarrier of the thread that did them, before a barrier of threads or blocks.
__device__ __forceinline__ void FenceInitBarrier() { asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory"); }

// Arrives; the phase ends when `bytes` more have been copied, too.
__device__ __forceinline__ void ArriveExpecting(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
// One of the arrivals, as soon as this thread's cp.async so far are there.
__device__ __forceinline__ void ArriveWhenCopied(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
}

// Until the phase of that parity has ended. A wait of many seconds is a fault of ours: the kernel fails rather than hang.
__device__ __forceinline__ void WaitForPhase(uint32_t barrier, uint32_t parity) {
  constexpr int64_t kMostClocks = int64_t{1} << 36;
  int64_t since = 0;
  while (true) {
    uint32_t over;
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(over)
        : "r"(barrier), "r"(parity)
        : "memory");
    if (over) return;
    const int64_t now = clock64();
    if (since == 0) since = now;
    if (now - since > kMostClocks) __trap();
  }
}

// Where `address` of this block is in the cluster's block `rank`.
__device__ __forceinline__ uint32_t PeerAddress(uint32_t address, int rank) {
  uint32_t peer;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(peer) : "r"(address), "r"(rank));
  return peer;
}
__device__ __forceinline__ float4 LoadFromPeer(uint32_t peer) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];\n" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(peer) : "memory");
  return v;
}
// Every thread of every block of the cluster arrives, and then waits.
__device__ __forceinline__ void ArriveAtCluster() { asm volatile("barrier.cluster.arrive.release;\n" ::: "memory"); }
__device__ __forceinline__ void WaitForCluster() { asm volatile("barrier.cluster.wait.acquire;\n" ::: "memory"); }

// How long L2 should keep what is copied.
inline constexpr uint64_t kEvictFirst = 0x12f0000000000000, kEvictLast = 0x14f0000000000000;

// `bytes` in a row, all of it in multiples of 16: to this block.
__device__ __forceinline__ void CopyBytes(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to), "l"(from), "r"(bytes),
               "r"(barrier)
               : "memory");
}
// The box of the map that begins at (c0, c1): to this block.
__device__ __forceinline__ void CopyBox(uint32_t to, const CUtensorMap& map, int c0, int c1, uint32_t barrier, uint64_t keep) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;\n" ::"r"(
          to),
      "l"(&map), "r"(c0), "r"(c1), "r"(barrier), "l"(keep)
      : "memory");
}
__device__ __forceinline__ void CopyBox(uint32_t to, const CUtensorMap& map, int c0, int c1, int c2, int c3, uint32_t barrier, uint64_t keep) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], "
      "[%6], %7;\n" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier), "l"(keep)
      : "memory");
}
__device__ __forceinline__ void PrefetchMap(const CUtensorMap& map) { asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory"); }

}  // namespace cachalot
