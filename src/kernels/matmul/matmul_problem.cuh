// One shape of problem for the three matmuls: groups (one, the heads, the experts) of rows of x, each with its own W and y.
// For the matmuls' own sources.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "device/cuda/value.cuh"
#include "kernels/matmul/code_rows.h"
#include "kernels/matmul/matmul_cuda.h"

namespace cachalot {

struct MatmulProblem {
  const void* x = nullptr;     // F32, or 16-bit after ConvertX
  int64_t x_stride = 0;        // values
  int64_t x_group_stride = 0;
  CudaHalfRows x_half = {};
  const int32_t* x_rows = nullptr;
  int m = 0;                   // rows of a group (experts: at most)
  int num_groups = 1;

  int n = 0, k = 0;
  CudaRowLayout layout;
  const std::byte* w = nullptr;  // group g: rows g * n ..
  const float* block_scales = nullptr;
  int block_scale_rows = 128;

  float* y = nullptr;
  int64_t y_stride = 0;
  int64_t y_group_stride = 0;
  const float* bias = nullptr;
  bool accumulate = false;

  // What is asked for beside the products (CudaFusion): the weight of the norm in front, or null; half of n, or 0, and where
  // SwiGLU's F16 copy goes.
  const float* norm_weight = nullptr;
  float norm_eps = 0;
  int glu_rows = 0;
  CudaHalfRows y_half = {};

  // Experts: rows of group e are the pairs [expert_begin[e], expert_begin[e + 1]).
  const int32_t* expert_begin = nullptr;
  const std::byte* const* expert_data = nullptr;
  const float* const* expert_block_scales = nullptr;
};

// Rows of one group: row i of x is XRow(first + i), row i of y is y + (first + i) * y_stride.
struct MatmulGroupView {
  int first = 0;
  int m = 0;
  const std::byte* w = nullptr;
  const float* block_scales = nullptr;
  int64_t x_offset = 0;  // values
  float* y = nullptr;
};

__device__ __forceinline__ MatmulGroupView GroupOf(const MatmulProblem& p, int g) {
  MatmulGroupView view;
  if (p.expert_begin != nullptr) {
    view.first = p.expert_begin[g];
    view.m = p.expert_begin[g + 1] - view.first;
    view.w = p.expert_data[g];
    view.block_scales = p.expert_block_scales != nullptr ? p.expert_block_scales[g] : nullptr;
    view.y = p.y;
    return view;
  }
  view.m = p.m;
  view.w = p.w + int64_t{g} * p.n * p.layout.row_bytes;
  view.block_scales = p.block_scales;
  view.x_offset = g * p.x_group_stride;
  view.y = p.y + g * p.y_group_stride;
  return view;
}

__device__ __forceinline__ int XRow(const MatmulProblem& p, int row) { return p.x_rows != nullptr ? p.x_rows[row] : row; }

__device__ __forceinline__ float HalfBits(uint32_t bits) { return __half2float(__ushort_as_half(static_cast<uint16_t>(bits))); }

// Reads a row of W four values at a time; decodes are those of quant/<format>.h, bit for bit.
template <DType kType>
struct WeightRow {
  static constexpr bool kCodes = IsCodeRow(kType);
  CudaRowLayout layout;
  const std::byte* row;
  const std::byte* scales;
  const std::byte* minima;
  const float* block_scales;  // FP8: of this row; or null

  __device__ WeightRow(const std::byte* row, const CudaRowLayout& layout, const float* all_block_scales,
                       int64_t block_scale_rows, int64_t row_idx, int64_t k)
      : layout(layout),
        row(row),
        scales(row + layout.scales_offset),
        minima(row + layout.minima_offset),
        block_scales(all_block_scales == nullptr ? nullptr
                                                 : all_block_scales + row_idx / block_scale_rows * ((k + 127) / 128)) {}

  // Values i .. i + 3; i is a multiple of 4. Those beyond k are zero (FP8: unless its scale is not finite).
  __device__ void Load4(int64_t i, float (&v)[4]) const {
    if constexpr (kCodes) {
      LoadCodes4<kType>(row, layout, i, v);
    } else if constexpr (kType == DType::kF32) {
      const float4 f = *reinterpret_cast<const float4*>(row + i * 4);
      v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
    } else if constexpr (kType == DType::kF16 || kType == DType::kBF16) {
      const uint2 u = *reinterpret_cast<const uint2*>(row + i * 2);
      const uint32_t bits[4] = {u.x & 0xffff, u.x >> 16, u.y & 0xffff, u.y >> 16};
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = kType == DType::kF16 ? HalfBits(bits[j]) : __uint_as_float(bits[j] << 16);
    } else if constexpr (kType == DType::kFP8E4M3 || kType == DType::kQ8_0) {
      const int64_t in_block = i % 32;
      const uint32_t u =
          *reinterpret_cast<const uint32_t*>(row + i / 64 * 64 + in_block / 8 * 16 + i % 64 / 32 * 8 + in_block % 8);
      const float scale = kType == DType::kQ8_0 ? HalfBits(*reinterpret_cast<const uint16_t*>(scales + i / 32 * 2))
                                                : (block_scales == nullptr ? 1.0f : block_scales[i / 128]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t code = u >> (8 * j) & 0xff;
        if constexpr (kType == DType::kQ8_0) {
          v[j] = __fmul_rn(static_cast<float>(static_cast<int8_t>(code)), scale);
        } else {  // exact: E4M3 fits in F16
          v[j] = __fmul_rn(
              __half2float(static_cast<__half>(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), __NV_E4M3))),
              scale);
        }
      }
    } else {
      const int64_t in_block = i % 32, at = in_block % 16;
      const uint32_t u = *reinterpret_cast<const uint32_t*>(row + i / 128 * 64 + at / 4 * 16 + i % 128 / 32 * 4) >>
                         (in_block < 16 ? 0 : 4);
      const float scale = HalfBits(*reinterpret_cast<const uint16_t*>(scales + i / 32 * 2));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int q = static_cast<int>(u >> (8 * j) & 0xf);
        if constexpr (kType == DType::kQ4_0) {
          v[j] = __fmul_rn(static_cast<float>(q - 8), scale);
        } else {
          v[j] = __fadd_rn(__fmul_rn(static_cast<float>(q), scale),
                           HalfBits(*reinterpret_cast<const uint16_t*>(minima + i / 32 * 2)));
        }
      }
    }
  }
};

}  // namespace cachalot
