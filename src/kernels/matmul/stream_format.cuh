// How the stream kernel reads each format of W: from 16 bytes of a row (of a 4-lane group's 64) to mma fragments.
//
// In mma m16n8k16 lane 4 g + q multiplies four values of k: which four is ours to choose, as long as W and x agree. So a
// lane takes 8 values of each block of 32 from one 16-byte load, and x lies in the order that falls out of unpacking
// (StreamOrder). Codes become F16 integers (Q8_0, Q4_0, Q4_1) or the values themselves (FP8) without rounding; scales
// multiply F32 sums of one block. x is rounded to F16 for all weights but those of BF16.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "device/cuda/clamped_half.cuh"
#include "device/cuda/value.cuh"
#include "kernels/matmul/code_rows.h"
#include "kernels/matmul/matmul_launch.h"

namespace cachalot {

// Two values of x rounded to 16 bits, the first in the low half.
__device__ __forceinline__ uint32_t PackX(float low, float high, __half) { return ClampedHalf2(low, high); }
__device__ __forceinline__ uint32_t PackX(float low, float high, __nv_bfloat16) { return Pack2(low, high, __nv_bfloat16{}); }

template <DType kType, bool kCodeRow = IsCodeRow(kType)>
struct StreamFormat {
  static constexpr bool kCodes = false;  // rows of codes: code_mma.cuh
  static constexpr bool kFp8 = kType == DType::kFP8E4M3;
  static constexpr bool kBlockScales = kType == DType::kQ8_0 || kType == DType::kQ4_0 || kType == DType::kQ4_1;
  static constexpr bool kMinima = kType == DType::kQ4_1;
  static constexpr int kBits = kFp8 || kType == DType::kQ8_0 ? 8 : kBlockScales ? 4 : 16;
  static constexpr bool kDirect = kBits == 16;  // products go to the accumulators unscaled
  static constexpr int kChunk = kBits == 16 ? 64 : 128;  // of k
  static constexpr int kRowBytes = kChunk * kBits / 8;
  static constexpr int kBlocksPerPiece = 16 / kBits;      // blocks of 32 values in the 64 bytes that four lanes load
  static constexpr int kPieces = kRowBytes / 64;
  static constexpr StreamOrder kOrder = StreamOrderOf(kType);
  static constexpr int kHighBytes = 0;
  static constexpr int kScaleBytes = kFp8 ? 4 : kBlockScales ? 8 : 0;  // of a row and a chunk
  static constexpr int kMinimaBytes = kMinima ? 8 : 0;
  static __host__ __device__ constexpr int ScalesAt(int chunk) { return chunk * (kChunk / 32 * 2); }
  static __host__ __device__ constexpr int MinimaAt(int chunk) { return ScalesAt(chunk); }
  using Element = std::conditional_t<kType == DType::kBF16, __nv_bfloat16, __half>;
};

// Rows of codes: scales are records, minima tops.
template <DType kType>
struct StreamFormat<kType, true> {
  using C = CodeChunk<kType>;
  static constexpr bool kCodes = true, kFp8 = false, kBlockScales = true, kDirect = false;
  static constexpr bool kMinima = C::kTopBytes > 0;
  static constexpr int kChunk = 128, kRowBytes = C::kCodeBytes;
  static constexpr StreamOrder kOrder = StreamOrderOf(kType);
  static constexpr int kHighBytes = C::kHighBytes, kScaleBytes = C::kRecordBytes, kMinimaBytes = C::kTopBytes;
  static __host__ __device__ constexpr int ScalesAt(int chunk) { return C::RecordAt(chunk); }
  static __host__ __device__ constexpr int MinimaAt(int chunk) { return C::TopAt(chunk); }
  using Element = __half;
};

__device__ __forceinline__ uint32_t SubF16x2(uint32_t a, uint32_t b) {
  const __half2 c = __hsub2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&c);
}
__device__ __forceinline__ uint32_t FmaF16x2(uint32_t a, uint32_t b, uint32_t c) {
  const __half2 d = __hfma2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b), *reinterpret_cast<__half2*>(&c));
  return *reinterpret_cast<const uint32_t*>(&d);
}

// Signed bytes 0 and 1 (kHigh: 2 and 3) of `u`, whose sign bits have been flipped: 0x6400 is 1024.
template <bool kHigh>
__device__ __forceinline__ uint32_t SignedBytes(uint32_t u) {
  return SubF16x2(__byte_perm(u, 0x64646464, kHigh ? 0x4342 : 0x4140), 0x64806480);
}
// u & mask | 0x64006400, in one instruction: the compiler makes two of it.
template <uint32_t kMask>
__device__ __forceinline__ uint32_t MaskedAbove1024(uint32_t u) {
  uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;\n" : "=r"(bits) : "r"(u), "n"(kMask), "r"(0x64006400u));
  return bits;
}
// Bits 0 .. 3 and 16 .. 19 less kZero; kHigh: bits 4 .. 7 and 20 .. 23, which come as sixteenfold.
template <int kZero, bool kHigh>
__device__ __forceinline__ uint32_t Nibbles(uint32_t u) {
  if constexpr (kHigh) {
    constexpr uint32_t kSixteenth = 0x2c002c00, kZeros = 0xd400d400u + kZero * 0x00100010u;  // -(64 + kZero)
    return FmaF16x2(MaskedAbove1024<0x00f000f0>(u), kSixteenth, kZeros);
  }
  return SubF16x2(MaskedAbove1024<0x000f000f>(u), 0x64006400u + kZero * 0x10001u);
}
// E4M3 bytes 0 and 1 of `u`.
__device__ __forceinline__ uint32_t Fp8Pair(uint32_t u) {
  const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(u), __NV_E4M3);
  return uint32_t{pair.x} | uint32_t{pair.y} << 16;
}

// Block b of the four-lane group's 64 bytes: this lane's 8 values of one row, as the two mma's two registers each.
template <DType kType>
__device__ __forceinline__ void UnpackBlock(const uint32_t (&raw)[4], int b, uint32_t (&out)[2][2]) {
  if constexpr (StreamFormat<kType>::kBits == 16) {
    out[0][0] = raw[0], out[0][1] = raw[1], out[1][0] = raw[2], out[1][1] = raw[3];
  } else if constexpr (StreamFormat<kType>::kBits == 8) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t u = raw[2 * b + j];
      if constexpr (kType == DType::kQ8_0) {
        out[j][0] = SignedBytes<false>(u ^ 0x80808080);
        out[j][1] = SignedBytes<true>(u ^ 0x80808080);
      } else {
        out[j][0] = Fp8Pair(u);
        out[j][1] = Fp8Pair(u >> 16);
      }
    }
  } else {
    constexpr int kZero = kType == DType::kQ4_0 ? 8 : 0;
    const uint32_t u = raw[b];
    out[0][0] = Nibbles<kZero, false>(u);
    out[0][1] = Nibbles<kZero, false>(u >> 8);
    out[1][0] = Nibbles<kZero, true>(u);
    out[1][1] = Nibbles<kZero, true>(u >> 8);
  }
}

}  // namespace cachalot
