// y = x · Wᵀ (+ bias), and its grouped form for experts and heads.
//
// Invariant (all variants): an output element depends only on its row of x and its row of W: the summation order over
// k is fixed by the format and the instruction set, never by the number of rows, their order, or the threads. So a row
// gives the same bits alone or in any batch. One exception, on the CPU and without ExecContext::deterministic: calls of
// 32 rows and more against F16 and BF16 weights take both sides as 16-bit integers (matmul/int16_tile.h), which moves
// an output by about 1e-4 of its RMS.
// Each weight byte is streamed from memory once per call (rows beyond the cache-sized tile excepted, which the byte
// counter then shows).
#pragma once

#include <cstdint>
#include <span>

#include "device/exec_context.h"
#include "kernels/matmul/cuda_fusion.h"
#include "kernels/matmul/packed_matrix.h"

namespace cachalot {

struct MatmulParams {
  const float* x = nullptr;  // [m, k], row stride x_stride
  int64_t x_stride = 0;
  int64_t m = 0;
  const PackedMatrix* weight = nullptr;
  const float* bias = nullptr;  // [n] or null
  float* y = nullptr;           // [m, n], row stride y_stride; must not overlap x
  int64_t y_stride = 0;
  bool accumulate = false;      // y += instead of y =
  CudaFusion fusion = {};       // only where MatmulFuses
};

void Matmul(const ExecContext& ctx, const MatmulParams& params);
// On the CPU: Matmul, then SwiGlu of y's halves [m, n / 2], gates first, written over the gates; to the bit. In one loop
// where it can be: what a thread has multiplied is then still in its cache, and need not go to another's.
void MatmulThenSwiGlu(const ExecContext& ctx, const MatmulParams& params);
// Whether the call, with its fusion, is one launch; never on the CPU.
bool MatmulFuses(const ExecContext& ctx, const MatmulParams& params);

// One member of a grouped matmul. Rows are gathered from x and scattered to y through index lists.
struct MatmulGroup {
  const PackedMatrix* weight = nullptr;
  int64_t m = 0;                     // 0: the group costs nothing, its weights are not read
  const float* x = nullptr;          // row i is x + x_rows[i] * x_stride (x_rows null: i)
  int64_t x_stride = 0;
  const int32_t* x_rows = nullptr;   // [m]
  float* y = nullptr;                // row i goes to y + y_rows[i] * y_stride (y_rows null: i)
  int64_t y_stride = 0;
  const int32_t* y_rows = nullptr;   // [m]
  const float* row_scale = nullptr;  // [m]: the product is multiplied by it; null: 1
};

struct GroupedMatmulParams {
  std::span<const MatmulGroup> groups;  // all weights share n, k, dtype and layout
  // y += in the order of the groups (so several groups may add to one row: the order, and with it the bits, is fixed
  // by the group index). False: y =, and no two groups may write the same element.
  bool accumulate = false;
};

void GroupedMatmul(const ExecContext& ctx, const GroupedMatmulParams& params);

// Scratch that a call with up to max_rows rows of x (for the grouped form: the sum over the groups) may take, with a
// pool of num_threads (0: any pool of up to as many threads as this machine has, or 16).
int64_t MatmulWorkspaceBytes(int64_t max_rows, int64_t k, int num_threads = 0);

}  // namespace cachalot
