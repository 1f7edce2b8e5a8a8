// What the current device is, asked of the driver once for each device; no lock and no call but cudaGetDevice afterwards. For
// the library's own sources.
#pragma once

#include <cstdint>

#include "device/cuda/cuda_exec.h"

namespace cachalot {

struct CudaCard {
  int compute_capability = 0;  // 90
  int64_t shared_bytes = 0;    // that a block may ask for
  // Whether sm_90a code is what runs. Elsewhere it is made from compute_80 PTX, in which wgmma and the waits for earlier kernels
  // (griddepcontrol) are left out: nothing may start early there.
  bool RunsHopperCode() const { return compute_capability == 90; }
};
// All zero when the driver does not say.
CudaCard CurrentCard();

// Lets a kernel have `bytes` of dynamic shared memory; a failure names `op`, what is asked for and what there is.
CudaStatus AllowSharedBytes(const void* kernel, int64_t bytes, const char* op);
template <typename... Params>
CudaStatus AllowSharedBytes(void (*kernel)(Params...), int64_t bytes, const char* op) {
  return AllowSharedBytes(reinterpret_cast<const void*>(kernel), bytes, op);
}

}  // namespace cachalot
