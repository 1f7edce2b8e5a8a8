// Two problems of the decode kernel in one launch (gemv_pair.cuh): for the matmuls' own sources.
#pragma once

#include "kernels/matmul/gemv_shape.h"
#include "kernels/matmul/matmul_problem.cuh"

namespace cachalot {

// Both shapes have the same number of warps.
struct GemvPair {
  MatmulProblem dense;
  MatmulProblem experts;
  int64_t slots = 0;  // pairs (token, expert)
  GemvShape dense_shape = {};
  GemvShape experts_shape = {};
};

}  // namespace cachalot
