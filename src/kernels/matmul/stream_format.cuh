// How the stream kernel reads each format of W: from 16 bytes of a row (of a 4-lane group's 64) to mma fragments.
//
// In mma m16n8k16 lane 4 g + q multiplies four values of k: which four is ours to choose, as long as W and x agree. So a
// lane takes 8 values of each block of 32 from one 16-byte load, and x lies in the order that falls out of unpacking
// (StreamOrder). Codes become BF16 integers (Q8_0, Q4_0, Q4_1) or the values themselves (FP8) without rounding; scales
// multiply F32 sums of one block.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "device/cuda/value.cuh"
#include "kernels/matmul/matmul_launch.h"

namespace cachalot {

// What x is before it is rounded to 16 bits: F16 has no room for outliers.
__device__ __forceinline__ float ClampedFor(float value, __half) {
  return value > 65504.0f ? 65504.0f : value < -65504.0f ? -65504.0f : value;
}
__device__ __forceinline__ float ClampedFor(float value, __nv_bfloat16) { return value; }

template <DType kType>
struct StreamFormat {
  static constexpr bool kFp8 = kType == DType::kFP8E4M3;
  static constexpr bool kBlockScales = kType == DType::kQ8_0 || kType == DType::kQ4_0 || kType == DType::kQ4_1;
  static constexpr bool kMinima = kType == DType::kQ4_1;
  static constexpr int kBits = kFp8 || kType == DType::kQ8_0 ? 8 : kBlockScales ? 4 : 16;
  static constexpr bool kDirect = kBits == 16;  // products go to the accumulators unscaled
  static constexpr int kChunk = kBits == 16 ? 64 : 128;  // of k
  static constexpr int kRowBytes = kChunk * kBits / 8;
  static constexpr int kBlocksPerPiece = 16 / kBits;      // blocks of 32 values in the 64 bytes that four lanes load
  static constexpr int kPieces = kRowBytes / 64;
  static constexpr StreamOrder kOrder =
      kBits == 16 ? StreamOrder::kPlain : kBits == 8 ? StreamOrder::kEven : StreamOrder::kNibble;
  using Element = std::conditional_t<kType == DType::kF16, __half, __nv_bfloat16>;
};

__device__ __forceinline__ uint32_t SubBf16x2(uint32_t a, uint32_t b) {
  const __nv_bfloat162 c = __hsub2(*reinterpret_cast<__nv_bfloat162*>(&a), *reinterpret_cast<__nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&c);
}
__device__ __forceinline__ uint32_t MulBf16x2(uint32_t a, uint32_t b) {
  const __nv_bfloat162 c = __hmul2(*reinterpret_cast<__nv_bfloat162*>(&a), *reinterpret_cast<__nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&c);
}

// Bytes 0 and 2 of `u` as integers. 0x4300 is 128 and 0x4380 is 256: 128 + the low seven bits - (128 or, signed, 256).
__device__ __forceinline__ uint32_t SignedBytes(uint32_t u) {
  return SubBf16x2((u & 0x007f007f) | 0x43004300, (u & 0x00800080) | 0x43004300);
}
// Bits 0 .. 3 and 16 .. 19 less kZero.
template <int kZero>
__device__ __forceinline__ uint32_t Nibbles(uint32_t u) {
  constexpr uint32_t kZeros = 0x43004300u + kZero * 0x10001u;
  return SubBf16x2((u & 0x000f000f) | 0x43004300, kZeros);
}
constexpr uint32_t kTwoTo120 = 0x7b807b80;  // BF16's exponent bias less E4M3's

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
        out[j][0] = SignedBytes(u);
        out[j][1] = SignedBytes(u >> 8);
      } else {  // sign to bit 15, exponent and mantissa to bits 4 .. 10
        out[j][0] = MulBf16x2(((u << 4) & 0x07f007f0) | ((u << 8) & 0x80008000), kTwoTo120);
        out[j][1] = MulBf16x2(((u >> 4) & 0x07f007f0) | (u & 0x80008000), kTwoTo120);
      }
    }
  } else {
    constexpr int kZero = kType == DType::kQ4_0 ? 8 : 0;
    const uint32_t u = raw[b];
    out[0][0] = Nibbles<kZero>(u);
    out[0][1] = Nibbles<kZero>(u >> 8);
    out[1][0] = Nibbles<kZero>(u >> 4);
    out[1][1] = Nibbles<kZero>(u >> 12);
  }
}

}  // namespace cachalot
