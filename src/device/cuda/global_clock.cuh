// The clock that all SMs share.
#pragma once

#include <cstdint>

namespace cachalot {

__device__ __forceinline__ uint64_t GlobalNs() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

}  // namespace cachalot
