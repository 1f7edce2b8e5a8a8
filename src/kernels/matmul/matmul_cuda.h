// Matmuls on the GPU: one weight for all rows, one weight per head, one weight per expert. Pointers are device pointers.
//
// Weights lie in rows of their own (CudaRowLayout): the host turns a file's rows into them one by one while it uploads,
// so parts stack at any row. Invariants: an output depends only on its row of x and of W; with exec.deterministic its bits
// do not depend on the number of rows either.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/cuda_half_copies.h"
#include "kernels/matmul/cuda_fusion.h"
#include "tensor/dtype.h"

namespace cachalot {

// How a row of k values lies in device memory: all codes, then (block formats) the F16 scales, one for 32 values, then
// (Q4_1) the F16 minima; each part padded to 16 bytes with zeros.
//   F32, F16, BF16: the values in their order.
//   8-bit (FP8, Q8_0): k padded to 128. Of 64 values, 16-byte piece q holds values 8q .. 8q + 7 of the first block of 32,
//     then those of the second.
//   4-bit (Q4_0, Q4_1): k padded to 128. Of 128 values, 16-byte piece q holds bytes 4q .. 4q + 3 of each of the four blocks;
//     byte i of a block holds value i (low half) and value 16 + i (high half), as in the file.
//   Rows of codes (CodeRow below): code_rows.h.
// So one 16-byte load of a tensor core's lane gives it work on whole blocks, and no product mixes two blocks' scales. Blocks
// of the padding have zero codes and zero scales.
struct CudaRowLayout {
  int64_t row_bytes = 0;       // stride from row to row, a multiple of 16
  int64_t scales_offset = 0;   // within a row; 0: none. Rows of codes: the records
  int64_t minima_offset = 0;   // rows of codes: the tops
  int64_t high_offset = 0;     // rows of codes: the high bits
};

// GGUF's formats of 2 to 6 bits, but for Q4_0 and Q4_1, which are older here: one row each. `code_bits` 0: none of them.
struct CodeRow {
  int code_bits = 0;     // 4 or 2; a value's others are high bits
  int high_bits = 0;
  int record_bytes = 0;  // of 256 values: scales
  int top_bytes = 0;     // of 256 values: minima, or what multiplies the records
  int sub_block = 32;    // values that share a scale
  bool minima = false;
  bool whole_blocks = true;  // of 256 values; else of 32, with F16 scales (and minima) of their own
  bool levels = false;       // a code is an index into IQ4's levels
};
constexpr CodeRow CodeRowOf(DType dtype) {
  switch (dtype) {
    case DType::kQ5_0:
      return {.code_bits = 4, .high_bits = 1, .record_bytes = 16, .whole_blocks = false};
    case DType::kQ5_1:
      return {.code_bits = 4, .high_bits = 1, .record_bytes = 16, .top_bytes = 16, .minima = true, .whole_blocks = false};
    case DType::kIQ4_NL:
      return {.code_bits = 4, .record_bytes = 16, .whole_blocks = false, .levels = true};
    case DType::kQ2_K:
      return {.code_bits = 2, .record_bytes = 16, .top_bytes = 4, .sub_block = 16, .minima = true};
    case DType::kQ3_K:
      return {.code_bits = 2, .high_bits = 1, .record_bytes = 16, .sub_block = 16};
    case DType::kQ4_K:
      return {.code_bits = 4, .record_bytes = 16, .minima = true};
    case DType::kQ5_K:
      return {.code_bits = 4, .high_bits = 1, .record_bytes = 16, .minima = true};
    case DType::kQ6_K:
      return {.code_bits = 4, .high_bits = 2, .record_bytes = 16, .top_bytes = 2, .sub_block = 16};
    case DType::kIQ4_XS:
      return {.code_bits = 4, .record_bytes = 8, .levels = true};
    default:
      return {};
  }
}
constexpr bool IsCodeRow(DType dtype) { return CodeRowOf(dtype).code_bits != 0; }

// Values of which rows are made: k is a multiple of it.
constexpr int CudaBlockOf(DType dtype) {
  if (IsCodeRow(dtype)) return CodeRowOf(dtype).whole_blocks ? 256 : 32;
  return dtype == DType::kQ8_0 || dtype == DType::kQ4_0 || dtype == DType::kQ4_1 ? 32 : 1;
}

// Of F32, F16, BF16, FP8, Q8_0 and all types of fewer bits that files have here; row_bytes 0 for a type that no kernel reads.
constexpr CudaRowLayout CudaRowsOf(DType dtype, int64_t k) {
  const int64_t padded = (k + 127) / 128 * 128, scale_bytes = (padded / 16 + 15) / 16 * 16;
  if (IsCodeRow(dtype)) {
    const CodeRow codes = CodeRowOf(dtype);
    const auto plane = [&](int64_t bytes_of_256) { return (padded * bytes_of_256 / 256 + 15) / 16 * 16; };
    CudaRowLayout layout;
    layout.high_offset = plane(codes.code_bits * 32);
    layout.scales_offset = layout.high_offset + plane(codes.high_bits * 32);
    layout.minima_offset = layout.scales_offset + plane(codes.record_bytes);
    layout.row_bytes = layout.minima_offset + plane(codes.top_bytes);
    return layout;
  }
  switch (dtype) {
    case DType::kF32:
      return {.row_bytes = (k * 4 + 15) / 16 * 16};
    case DType::kF16:
    case DType::kBF16:
      return {.row_bytes = (k * 2 + 15) / 16 * 16};
    case DType::kFP8E4M3:
      return {.row_bytes = padded};
    case DType::kQ8_0:
      return {.row_bytes = padded + scale_bytes, .scales_offset = padded};
    case DType::kQ4_0:
      return {.row_bytes = padded / 2 + scale_bytes, .scales_offset = padded / 2};
    case DType::kQ4_1:
      return {.row_bytes = padded / 2 + 2 * scale_bytes, .scales_offset = padded / 2, .minima_offset = padded / 2 + scale_bytes};
    default:
      return {};
  }
}
// One row [k] as a file holds it into the device layout (in host memory, row_bytes long, padding zero). `k` is a multiple of
// CudaBlockOf(dtype).
void PackCudaRow(DType dtype, const std::byte* source, int64_t k, std::byte* row);

// W [n, k] in device memory.
struct CudaMatrix {
  DType dtype = DType::kF32;
  int64_t n = 0;
  int64_t k = 0;
  const std::byte* data = nullptr;        // n rows of CudaRowsOf(dtype, k), 256-byte aligned
  const float* block_scales = nullptr;    // FP8: [ceil(n / block_scale_rows), ceil(k / 128)]; null: all one
  int64_t block_scale_rows = 128;         // 128 or 1
};

// y (+)= x · Wᵀ (+ bias)
//
// CudaMath::kFast rounds x to F16 (clamped to ±65504; BF16 weights: to BF16) and accumulates in F32; F32 weights are
// multiplied in F32. Fast where x is 16-byte aligned with strides of whole 16 bytes; right everywhere.
struct CudaMatmulParams {
  const float* x = nullptr;  // [m, k], row stride x_stride
  int64_t x_stride = 0;
  CudaHalfRows x_half = {};       // or null: x rounded to F16, k padded to 128; 16-byte aligned
  int64_t m = 0;
  CudaMatrix weight;
  const float* bias = nullptr;  // [n] or null
  float* y = nullptr;           // [m, n], row stride y_stride; must not overlap x
  int64_t y_stride = 0;
  bool accumulate = false;
  CudaHalfRows y_half = {};     // glu: y as F16 too, or null
  CudaFusion fusion = {};       // no bias and no accumulation beside glu
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
  CudaHalfRows y_half = {};  // y as F16 too, head behind head, or null
};

// Pairs (token, expert) sorted by expert, as MoeSort leaves them: expert e owns pairs [expert_begin[e], expert_begin[e+1]).
// The host knows max_pairs only; pairs beyond expert_begin[num_experts] are not touched.
struct CudaMoeMatmulParams {
  const float* x = nullptr;             // row of pair p is x_rows[p] (null: p)
  int64_t x_stride = 0;
  CudaHalfRows x_half = {};                  // as CudaMatmulParams
  const int32_t* x_rows = nullptr;      // [max_pairs], each below max_pairs / top_k
  const int32_t* expert_begin = nullptr;  // [num_experts + 1]
  int32_t num_experts = 0;
  int64_t max_pairs = 0;
  int32_t top_k = 0;                    // max_pairs / top_k rows at most fall on one expert
  CudaMatrix weight;                    // of one expert: [n, k]; data and block_scales are not used
  const std::byte* const* expert_data = nullptr;          // [num_experts], device array of device pointers
  const float* const* expert_block_scales = nullptr;      // FP8: the same
  float* y = nullptr;                   // [max_pairs, n], row p
  int64_t y_stride = 0;
  CudaHalfRows y_half = {};             // as CudaMatmulParams
  CudaFusion fusion = {};
};

// residual[t] += sum over the pairs p of token t, in rising expert order, of pair_weights[p] * y[p]; then residual[t] += extra[t].
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
  const float* extra = nullptr;         // [num_tokens, dim] or null: added last
  int64_t extra_stride = 0;
};

}  // namespace cachalot
