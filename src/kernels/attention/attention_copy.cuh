// Copies of cached tokens to shared memory (sm_90) that pass through L2 without driving out what others need there: block tables, the
// schedule, queries, partial results.
#pragma once

#include <cstdint>

namespace cachalot {

__device__ __forceinline__ uint64_t PassingPolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(policy));
  return policy;
}
// As CopyAsync16.
__device__ __forceinline__ void CopyPassing16(uint32_t shared, const void* global, bool valid, uint64_t policy) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;\n" ::"r"(shared), "l"(global), "r"(bytes), "l"(policy) : "memory");
}

}  // namespace cachalot
