// Matmuls on the GPU: one weight for all rows, one weight per head, one weight per expert. Pointers are device pointers.
//
// Weights lie in rows of their own (CudaRowLayout): the host turns a file's rows into them one by one while it uploads,
// so parts stack at any row. Invariants: an output depends only on its row of x and of W; with exec.deterministic its bits
// do not depend on the number of rows either.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace cachalot {

// How a row of k values lies in device memory: all codes, then (block formats) the F16 scales [k/32], then (Q4_1) the F16
// minima [k/32]; padded to 16 bytes, so that codes and scales can be read 16 bytes at a time. A 4-bit byte of block b holds
// values b*32 + i (low half) and b*32 + 16 + i (high half), as in the file.
struct CudaRowLayout {
  int64_t row_bytes = 0;       // stride from row to row
  int64_t scales_offset = 0;   // within a row; 0: none
  int64_t minima_offset = 0;
};
// kF32, kF16, kBF16, kFP8E4M3, kQ8_0, kQ4_0, kQ4_1; row_bytes 0 for a type that no kernel reads.
CudaRowLayout CudaRowsOf(DType dtype, int64_t k);
// One row [k] as a file holds it into the device layout (in host memory, row_bytes long, padding zero).
void PackCudaRow(DType dtype, const std::byte* source, int64_t k, std::byte* row);

// W [n, k] in device memory.
struct CudaMatrix {
  DType dtype = DType::kF32;
  int64_t n = 0;
  int64_t k = 0;
  const std::byte* data = nullptr;        // n rows of CudaRowsOf(dtype, k), 256-byte aligned
  const float* block_scales = nullptr;    // FP8: [ceil(n / block_scale_rows), ceil(k / 128)]
  int64_t block_scale_rows = 128;         // 128 or 1
};

// y (+)= x · Wᵀ (+ bias)
struct CudaMatmulParams {
  const float* x = nullptr;  // [m, k], row stride x_stride
  int64_t x_stride = 0;
  int64_t m = 0;
  CudaMatrix weight;
  const float* bias = nullptr;  // [n] or null
  float* y = nullptr;           // [m, n], row stride y_stride; must not overlap x
  int64_t y_stride = 0;
  bool accumulate = false;
};

// For each head h: y[i, h] = x[i, h] · W_hᵀ; the heads' weights are stacked: rows [h * n, (h + 1) * n) of `weight`.
struct CudaHeadMatmulParams {
  const float* x = nullptr;  // row i, head h at x + i * x_stride + h * x_head_stride, [k]
  int64_t x_stride = 0;
  int64_t x_head_stride = 0;
  int64_t m = 0;
  int32_t num_heads = 0;
  int64_t n = 0;             // per head
  CudaMatrix weight;         // [num_heads * n, k], no FP8
  float* y = nullptr;        // row i, head h at y + i * y_stride + h * y_head_stride, [n]
  int64_t y_stride = 0;
  int64_t y_head_stride = 0;
};

// Pairs (token, expert) sorted by expert, as MoeSort leaves them: expert e owns pairs [expert_begin[e], expert_begin[e+1]).
// The host knows max_pairs only; pairs beyond expert_begin[num_experts] are not touched.
struct CudaMoeMatmulParams {
  const float* x = nullptr;             // row of pair p is x_rows[p] (null: p)
  int64_t x_stride = 0;
  const int32_t* x_rows = nullptr;
  const int32_t* expert_begin = nullptr;  // [num_experts + 1]
  int32_t num_experts = 0;
  int64_t max_pairs = 0;
  int32_t top_k = 0;                    // max_pairs / top_k rows at most fall on one expert
  CudaMatrix weight;                    // of one expert: [n, k]; data and block_scales are not used
  const std::byte* const* expert_data = nullptr;          // [num_experts], device array of device pointers
  const float* const* expert_block_scales = nullptr;      // FP8: the same
  float* y = nullptr;                   // [max_pairs, n], row p
  int64_t y_stride = 0;
};

// residual[t] += sum over the pairs p of token t, in rising expert order, of pair_weights[p] * y[p].
struct CudaMoeCombineParams {
  const float* y = nullptr;             // [max_pairs, dim]
  int64_t y_stride = 0;
  const float* pair_weights = nullptr;  // [max_pairs]
  const int32_t* token_pairs = nullptr; // [num_tokens, top_k]: the pairs of a token in rising order, -1: none
  int64_t num_tokens = 0;
  int32_t top_k = 0;
  int64_t dim = 0;
  float* residual = nullptr;            // [num_tokens, dim]
  int64_t residual_stride = 0;
};

}  // namespace cachalot
