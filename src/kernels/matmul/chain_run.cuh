// A run of a row of W and x for chain.cuh: how x lies in shared memory, and the products.
//
// x becomes integers of 16 bits for each block of 32 values (at most 32512 in size, as two bytes with a
// sign); a code is a byte, 16 times its number. A lane's sixteen bytes of a row's chunk of 128 values are mma
// m16n8k32's A as they stand: word b is of block b, so that in row g of A are blocks 0 and 2 of W's row g, in
// row g + 8 blocks 1 and 3. Column 2 j + part of B is block j and the upper or lower byte of x, for k < 16 of
// blocks 0 and 1, above of blocks 2 and 3. So lane (g, q) has the sum of (row g, block q), exact, in row g or
// in row g + 8.
#pragma once

#include <cuda_fp16.h>

#include <cstring>

#include "device/cuda/warp.cuh"
#include "kernels/matmul/chain.h"
#include "kernels/matmul/code_rows.h"

namespace cachalot {
namespace {

__device__ __forceinline__ void LoadChain16(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}
__device__ __forceinline__ void StoreChain8(uint32_t shared, uint32_t a, uint32_t b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};\n" ::"r"(shared), "r"(a), "r"(b) : "memory");
}
// c += a b, bytes without a sign by bytes with one.
__device__ __forceinline__ void MmaBytes(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
      "%1, %2, %3};\n"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ float MaxOrNan(float a, float b) {
  float out;
  asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(out) : "f"(a), "f"(b));
  return out;
}
__device__ __forceinline__ __half2 HalvesOf(uint32_t bits) {
  __half2 out;
  memcpy(&out, &bits, sizeof(out));
  return out;
}

// Q4_K: a run is a superblock of 256 values with its record.
template <DType kType>
struct ChainX;
template <DType kType>
struct ChainRun;

// A superblock of x as a lane keeps it for mma's B.
template <>
struct ChainX<DType::kQ4_K> {
  uint32_t low[2][2], high[2][2];  // of chunk: the first half of a block's values and the second
  float scale[2], sum[2];          // of chunk, block `quad`

  // By a warp, to a superblock's place: lane 4 b + q has of block b the values at 4 q and at 16 + 4 q. Then
  // lane (g, q) has at 16 lane + 8 c its two words of chunk c of mma's B: block g / 2, part g % 2.
  static __device__ __forceinline__ void Stage(const float4 (&v)[2], uint32_t x) {
    const float f[2][4] = {{v[0].x, v[0].y, v[0].z, v[0].w}, {v[1].x, v[1].y, v[1].z, v[1].w}};
    float most = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) most = MaxOrNan(most, fabsf(f[i / 4][i % 4]));
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2)
      most = MaxOrNan(most, __shfl_xor_sync(kAllLanes, most, offset));
    constexpr float kMost = 32512;  // 127 * 256
    const float inverse = most > 0 ? __fdividef(kMost, most) : 0.0f;
    uint32_t upper[2], lower[2];
    int sum = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t n[4];  // its lower 16 bits
#pragma unroll
      for (int i = 0; i < 4; ++i) n[i] = __float_as_uint(fmaf(f[half][i], inverse, 0x1.8p23f));
      lower[half] = __byte_perm(__byte_perm(n[0], n[1], 0x0040), __byte_perm(n[2], n[3], 0x0040), 0x5410);
      upper[half] = __byte_perm(__byte_perm(n[0] + 128, n[1] + 128, 0x0051),
                                __byte_perm(n[2] + 128, n[3] + 128, 0x0051), 0x5410);
      sum = __dp4a(static_cast<int>(lower[half]), 0x01010101, sum);
      sum += __dp4a(static_cast<int>(upper[half]), 0x01010101, 0) * 256;
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
    const int lane = static_cast<int>(threadIdx.x) % 32, c = lane / 16, j = lane / 4 % 4, quad = lane % 4;
    const uint32_t to = x + c * 8 + (2 * j * 4 + quad) * 16;
    StoreChain8(to, upper[0], upper[1]);
    StoreChain8(to + 4 * 16, lower[0], lower[1]);
    if (quad != 0) return;
    // Scale and sum of block j of both chunks, side by side; codes and minima come 16 times their number,
    // scales and minima 2^-24 times.
    const float scale = most * (0x1p20f / kMost);
    StoreChain8(x + kChainRunValues * 2 + j * 16 + c * 8, __float_as_uint(scale),
                __float_as_uint(scale * static_cast<float>(sum)));
  }

  __device__ __forceinline__ void Load(uint32_t x) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, quad = lane % 4;
    uint32_t bits[4], infos[4];
    LoadChain16(bits, x + lane * 16);
    LoadChain16(infos, x + kChainRunValues * 2 + quad * 16);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool mine = g / 4 == half;
        low[c][half] = mine ? bits[2 * c] : 0, high[c][half] = mine ? bits[2 * c + 1] : 0;
      }
      scale[c] = __uint_as_float(infos[2 * c]), sum[c] = __uint_as_float(infos[2 * c + 1]);
    }
  }
};

template <>
struct ChainRun<DType::kQ4_K> {
  uint32_t raw[2][2][4], record[2][4];

  // Of rows g and g + 8 of a tile, this warp's run of a stage.
  __device__ __forceinline__ void Load(uint32_t stage, int records_at) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, quad = lane % 4,
              run = static_cast<int>(threadIdx.x) / 32;
    const uint32_t row = stage + g * kChainRowStride, codes = row + run * kChainRunBytes + quad * 16,
                   records = row + records_at + run * kChainRecordBytes;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int c = 0; c < 2; ++c) LoadChain16(raw[h][c], codes + h * 8 * kChainRowStride + c * 64);
      LoadChain16(record[h], records + h * 8 * kChainRowStride);
    }
  }

  __device__ __forceinline__ void Multiply(const ChainX<DType::kQ4_K>& x, float (&acc)[2]) const {
    const int quad = static_cast<int>(threadIdx.x) % 4;
    const bool odd = quad % 2 == 1;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float products[2];  // of block `quad` of chunk c: 16 times the sum
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        uint32_t lower[4], upper[4];
#pragma unroll
        for (int b = 0; b < 4; ++b)
          lower[b] = raw[h][c][b] * 16 & 0xf0f0f0f0, upper[b] = raw[h][c][b] & 0xf0f0f0f0;
        int sums[4] = {};
        MmaBytes(sums, lower, x.low[c][0], x.low[c][1]);
        MmaBytes(sums, upper, x.high[c][0], x.high[c][1]);
        products[c] =
            static_cast<float>((odd ? sums[2] : sums[0]) * 256 + (odd ? sums[3] : sums[1])) * x.scale[c];
      }
      // Scales of 6 bits of both chunks, side by side; minima come 16 times. As F16 these bits are 2^-24
      // times the number.
      const uint32_t both = __byte_perm(record[h][1], record[h][2], 0x4400 + quad * 0x1111),
                     tops = record[h][3] >> 4 * quad;
      const float2 s = __half22float2(HalvesOf((tops << 4 & 0x00300030) | (both & 0x000f000f)));
      const float2 m = __half22float2(HalvesOf((tops << 6 & 0x03000300) | (both & 0x00f000f0)));
      const float2 d = __half22float2(HalvesOf(record[h][0]));
      const float product = fmaf(s.x, products[0], s.y * products[1]),
                  least = fmaf(m.x, x.sum[0], m.y * x.sum[1]);
      acc[h] = fmaf(-d.y, least, fmaf(d.x, product, acc[h]));
    }
  }
};

// Of two tiles: lane (g, quad) gets row g + 8 (quad % 2) of tile quad / 2, summed over the four lanes of g in
// one order for all rows.
__device__ __forceinline__ float ChainSums(const float (&acc)[kChainTiles][2]) {
  const bool odd = threadIdx.x % 2 == 1, later = threadIdx.x / 2 % 2 == 1;
  float of_tile[kChainTiles];
#pragma unroll
  for (int t = 0; t < kChainTiles; ++t) {
    of_tile[t] = (odd ? acc[t][1] : acc[t][0]) + __shfl_xor_sync(kAllLanes, odd ? acc[t][0] : acc[t][1], 1);
  }
  return (later ? of_tile[1] : of_tile[0]) + __shfl_xor_sync(kAllLanes, later ? of_tile[0] : of_tile[1], 2);
}

}  // namespace
}  // namespace cachalot
