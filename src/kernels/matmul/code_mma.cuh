// Rows of codes on tensor cores: from a chunk in shared memory (code_rows.h) to sums of products in F32.
//
// The numbers become F16 integers without rounding and are multiplied by x; a sub-block's sums are scaled in F32 as they
// join the accumulators, so nothing is rounded that a matmul of F32 scales and F16 x would not. The four lanes of a row
// decode the scales of one block each and pass them around: decoding them four times over would cost as much as the codes.
#pragma once

#include "device/cuda/tensor_core.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/matmul/code_rows.h"
#include "kernels/matmul/stream_format.cuh"

namespace cachalot {
namespace {

struct SharedWords {
  uint32_t at;
  __device__ __forceinline__ uint32_t operator[](int i) const {
    uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(word) : "r"(at + 4 * i));
    return word;
  }
};
template <int kWords>
__device__ __forceinline__ void LoadSharedRun(uint32_t (&r)[kWords], uint32_t at) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  if constexpr (kWords == 4) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
  } else if constexpr (kWords == 2) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];\n" : "=r"(r[0]), "=r"(r[1]) : "r"(at));
  } else {
    asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(r[0]) : "r"(at));
  }
}

// This lane's part of a chunk of one row: its values of all four blocks, the scales of block lane % 4.
template <DType kType>
struct CodeFragment {
  using C = CodeChunk<kType>;
  static constexpr int kHigh = C::kHighWords > 0 ? C::kHighWords : 1;
  uint32_t codes[C::kWords];
  uint32_t high[kHigh];
  float scale[2], min[2];

  // Where the row's four parts begin in shared memory.
  __device__ __forceinline__ void Load(uint32_t codes_at, uint32_t high_at, uint32_t record_at, uint32_t top_at, int chunk) {
    const int quad = static_cast<int>(threadIdx.x) % 4;
    LoadSharedRun(codes, codes_at + quad * (4 * C::kWords));
    if constexpr (C::kHighWords > 0) {
      LoadSharedRun(high, high_at + quad * (4 * C::kHighWords));
    } else {
      high[0] = 0;
    }
    const CodeScales s = CodeScalesOf<kType>(SharedWords{record_at}, SharedWords{top_at}, chunk, quad);
#pragma unroll
    for (int half = 0; half < 2; ++half) scale[half] = s.scale[half], min[half] = s.min[half];
  }
};

// Block b (known when compiled) of rows g and g + 8, as mma's A: two steps of 16 values, each with its scale and minimum.
template <DType kType>
struct CodeBlock {
  using C = CodeChunk<kType>;
  uint32_t a[2][4];
  float scale[C::kSubBlocks][2], min[C::kSubBlocks][2];  // of rows g and g + 8

  __device__ __forceinline__ void Unpack(const CodeFragment<kType> (&rows)[2], int b) {
    constexpr CodeRow kRow = C::kRow;
    constexpr int kZero = CodeZero<kType>();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t codes = rows[h].codes[CodeWordOf<kType>(b)], high = rows[h].high[HighWordOf<kType>(b)];
      if constexpr (!kRow.levels && (kRow.code_bits == 2 || kRow.high_bits == 0)) {  // four bits suffice
        const uint32_t nibbles = CodeNibbles<kType>(codes, high, b);
        a[0][h] = Nibbles<kZero, false>(nibbles);
        a[0][2 + h] = Nibbles<kZero, false>(nibbles >> 8);
        a[1][h] = Nibbles<kZero, true>(nibbles);
        a[1][2 + h] = Nibbles<kZero, true>(nibbles >> 8);
      } else {
        uint32_t pairs[2][2];
        CodePairs<kType>(codes, high, b, pairs);
#pragma unroll
        for (int j = 0; j < 2; ++j) {  // 0x6400 is 1024
          a[j][h] = SubF16x2(pairs[j][0] | 0x64006400, 0x64006400u + kZero * 0x10001u);
          a[j][2 + h] = SubF16x2(pairs[j][1] | 0x64006400, 0x64006400u + kZero * 0x10001u);
        }
      }
#pragma unroll
      for (int sub = 0; sub < C::kSubBlocks; ++sub) {
        scale[sub][h] = __shfl_sync(kAllLanes, rows[h].scale[sub], b, 4);
        if constexpr (C::kMinima) min[sub][h] = __shfl_sync(kAllLanes, rows[h].min[sub], b, 4);
      }
    }
  }

  // Sums of x over the sub-blocks, which minima multiply; `x`: mma's B registers of both steps.
  static __device__ __forceinline__ void SumX(const uint32_t (&x)[4], float (&sum_x)[C::kSubBlocks][4]) {
    if constexpr (C::kMinima) {
      constexpr uint32_t kOnes[4] = {0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00};
      MmaFromZero(sum_x[0], kOnes, x[0], x[1]);
      if constexpr (C::kSubBlocks == 2) {
        MmaFromZero(sum_x[C::kSubBlocks - 1], kOnes, x[2], x[3]);
      } else {
        Mma(sum_x[0], kOnes, x[2], x[3], __half{});
      }
    }
  }

  // acc += W x
  __device__ __forceinline__ void Multiply(const uint32_t (&x)[4], const float (&sum_x)[C::kSubBlocks][4], float (&acc)[4]) const {
    float sum[C::kSubBlocks][4];
    MmaFromZero(sum[0], a[0], x[0], x[1]);
    if constexpr (C::kSubBlocks == 2) {
      MmaFromZero(sum[C::kSubBlocks - 1], a[1], x[2], x[3]);
    } else {
      Mma(sum[0], a[1], x[2], x[3], __half{});
    }
#pragma unroll
    for (int sub = 0; sub < C::kSubBlocks; ++sub) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        acc[c] = fmaf(scale[sub][c / 2], sum[sub][c], acc[c]);
        if constexpr (C::kMinima) acc[c] = fmaf(-min[sub][c / 2], sum_x[sub][c], acc[c]);
      }
    }
  }
};

}  // namespace
}  // namespace cachalot
