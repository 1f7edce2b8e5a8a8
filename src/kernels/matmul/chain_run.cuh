// A run of a row of W and x for chain.cuh: how x lies in shared memory, and the products.
//
// x becomes integers of 16 bits for each block of 32 values (at most 32512 in size, as two bytes with a sign); a code is a byte, 16
// times its number. mma m16n8k32: rows of W by columns of x, where column 2 j + part of a product is block j of a chunk of 128 values
// and the upper or lower byte: other blocks' values are zero in it, so four blocks' sums of one row lie in four lanes, exact.
#pragma once

#include "device/cuda/tensor_core.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/matmul/chain.h"
#include "kernels/matmul/code_rows.h"

namespace cachalot {
namespace {

__device__ __forceinline__ void LoadChain16(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared) : "memory");
}
// c += a b, bytes without a sign by bytes with one.
__device__ __forceinline__ void MmaBytes(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ float MaxOrNan(float a, float b) {
  float out;
  asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(out) : "f"(a), "f"(b));
  return out;
}
__device__ __forceinline__ uint32_t FourBytes(const int (&v)[4]) {
  return __byte_perm(__byte_perm(v[0], v[1], 0x0040), __byte_perm(v[2], v[3], 0x0040), 0x5410);
}

template <DType kType>
struct ChainRun;

// Q4_K: a run is a superblock of 256 values with its record.
template <>
struct ChainRun<DType::kQ4_K> {
  float acc[2] = {};

  // Of chunk c of superblock s lane (g, q) has at x + s 512 + lane 16 + c 8 its two words of mma's B: block g / 2, part g % 2.
  static __device__ __forceinline__ void Stage(const float4 (&v)[2], int group, bool there, int k, unsigned char* x) {
    const float f[2][4] = {{v[0].x, v[0].y, v[0].z, v[0].w}, {v[1].x, v[1].y, v[1].z, v[1].w}};
    float most = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) most = MaxOrNan(most, fabsf(f[i / 4][i % 4]));
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) most = MaxOrNan(most, __shfl_xor_sync(kAllLanes, most, offset));
    constexpr float kMost = 32512;  // 127 * 256
    const float inverse = most > 0 ? __fdiv_rn(kMost, most) : 0.0f;
    int upper[2][4], lower[2][4], sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int n = __float2int_rn(f[i / 4][i % 4] * inverse);
      sum += n;
      upper[i / 4][i % 4] = (n + 128) >> 8;
      lower[i / 4][i % 4] = n;  // its lower byte, with a sign
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
    if (!there) return;
    const int block = group / 4, quad = group % 4, j = block % 4;
    unsigned char* to = x + block / 8 * 512 + block % 8 / 4 * 8 + (2 * j * 4 + quad) * 16;
    *reinterpret_cast<uint2*>(to) = {FourBytes(upper[0]), FourBytes(upper[1])};
    *reinterpret_cast<uint2*>(to + 4 * 16) = {FourBytes(lower[0]), FourBytes(lower[1])};
    if (quad != 0) return;
    const float scale = most * (1 / kMost);
    // Of superblock s the scale (of codes 16 times their number) and the sum of block j of both chunks, side by side.
    *reinterpret_cast<float2*>(x + k * 2 + block / 8 * 64 + j * 16 + block % 8 / 4 * 8) = {scale * 0.0625f, scale * static_cast<float>(sum)};
  }

  __device__ __forceinline__ void Multiply(uint32_t stage, uint32_t x, uint32_t info, int of) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, quad = lane % 4, warp = of % kChainWarps;
    const uint32_t w = stage + g * kChainRowStride + warp * kChainRunBytes + quad * 16;
    const uint32_t records = stage + kChainRecordsAt + g * kChainRecordStride + warp * kChainRecordBytes;
    uint32_t raw[2][2][4], record[2][4], x_bits[4], x_info[4];
    LoadChain16(x_bits, x + of * 512 + lane * 16);
    LoadChain16(x_info, info + of * 64 + quad * 16);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int c = 0; c < 2; ++c) LoadChain16(raw[h][c], w + h * 8 * kChainRowStride + c * 64);
      LoadChain16(record[h], records + h * 8 * kChainRecordStride);
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      int sums[4] = {};
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        constexpr uint32_t kUpper = 0xf0f0f0f0;
        const uint32_t a[4] = {raw[0][c][b] * 16 & kUpper, raw[1][c][b] * 16 & kUpper, raw[0][c][b] & kUpper, raw[1][c][b] & kUpper};
        const bool mine = g / 2 == b;
        MmaBytes(sums, a, mine ? x_bits[2 * c] : 0, mine ? x_bits[2 * c + 1] : 0);
      }
      const float scale = __uint_as_float(x_info[2 * c]), sum_x = __uint_as_float(x_info[2 * c + 1]);
#pragma unroll
      for (int h = 0; h < 2; ++h) {  // row g + 8 h, block `quad`
        const CodeScales s = CodeScalesOf<DType::kQ4_K>(record[h], record[h], c, quad);
        const auto product = static_cast<float>(sums[2 * h] * 256 + sums[2 * h + 1]);
        acc[h] = fmaf(s.scale[0], product * scale, acc[h]);
        acc[h] = fmaf(-s.min[0], sum_x, acc[h]);
      }
    }
  }
  __device__ __forceinline__ float2 Sums() const {
    float2 sum = {acc[0], acc[1]};
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      sum.x += __shfl_xor_sync(kAllLanes, sum.x, offset);
      sum.y += __shfl_xor_sync(kAllLanes, sum.y, offset);
    }
    return sum;
  }
};

}  // namespace
}  // namespace cachalot
