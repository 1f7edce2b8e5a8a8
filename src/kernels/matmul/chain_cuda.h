// Matmuls of one row that follow each other, as the CUDA backend takes them. Pointers are device pointers.
#pragma once

#include "kernels/matmul/matmul_cuda.h"

namespace cachalot {

// Matmuls of one row of x, one after the other, each after all that the one in front wrote: as many calls of CudaMatmul, but codes are
// multiplied by x as integers of 16 bits for every 32 values instead of F16.
inline constexpr int kMostChained = 6;
struct CudaMatmulChain {
  CudaMatmulParams ops[kMostChained];
  int32_t count = 0;
};

}  // namespace cachalot
