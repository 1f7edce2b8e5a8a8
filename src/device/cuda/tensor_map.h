// Maps for bulk copies (sm_90): what of a matrix in device memory is a box, and how it lies in shared memory. For the library's
// own sources.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "device/cuda/cuda_exec.h"

namespace cachalot {

// 16-bit values, the first dimension side by side; boxes are 64 of those (128 bytes) in the swizzle that wgmma knows, and zero where
// they reach beyond the matrix.
struct BoxesOf {
  const void* data = nullptr;  // 16-byte aligned
  int rank = 2;                // 2 to 4
  int64_t sizes[4] = {};
  int64_t strides[4] = {};     // bytes, a multiple of 16; of the first: not looked at
  int box[4] = {64};           // each up to 256
};
CudaStatus MakeTensorMap(const BoxesOf& boxes, CUtensorMap* map);

}  // namespace cachalot
