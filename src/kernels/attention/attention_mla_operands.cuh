// What MLA's streaming kernel (attention_mla_stream_sm90.cu) multiplies latents by, in shared memory: queries
// and weights, rounded, and their rests (attention_tile.cuh).
#pragma once

#include "device/cuda/tensor_core.cuh"
#include "kernels/attention/attention_mla_stream.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/attention_wgmma.cuh"

namespace cachalot {

inline constexpr int kMlaKeyDim = 576;
inline constexpr int kMlaQueryRows = 2 * kMlaHeads;  // and behind them their rests
inline constexpr int kMlaQueryPanelBytes = kMlaQueryRows * kPanelBytes;
inline constexpr int kMlaWeightsBytes = kMlaHeads * kPanelBytes;

// The queries of a sequence, scaled for softmax in base 2, kWidth values at a time, and their rests; by all
// consumers.
template <typename T, int kWidth>
__device__ __forceinline__ void StoreMlaQueries(const AttentionParams& p, int64_t row, int heads,
                                                uint32_t queries) {
  constexpr int kUnits = kMlaKeyDim / kWidth;  // of a head
  constexpr int kBatch = kMlaHeads * kUnits / kMlaConsumers / (4 / kWidth);
  static_assert(kMlaHeads * kUnits % (kBatch * kMlaConsumers) == 0);
  const float scale = p.scale * kLog2E;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first < kMlaHeads * kUnits;
       first += kBatch * kMlaConsumers) {
    float q[kBatch][kWidth];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + i * kMlaConsumers, head = at / kUnits;
#pragma unroll
      for (float& value : q[i]) value = 0;
      if (head >= heads) continue;
      const float* from = p.q + row * p.q_token_stride + head * p.q_head_stride + at % kUnits * kWidth;
      if constexpr (kWidth == 4) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        q[i][0] = four.x, q[i][1] = four.y, q[i][2] = four.z, q[i][3] = four.w;
      } else {
        q[i][0] = from[0], q[i][1] = from[1];
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + i * kMlaConsumers, head = at / kUnits, column = at % kUnits * kWidth;
      const uint32_t panel = queries + column / kPanelValues * kMlaQueryPanelBytes;
#pragma unroll
      for (int c = 0; c < kWidth; c += 2) {
        const float a = q[i][c] * scale, b = q[i][c + 1] * scale;
        const uint32_t rounded = Pack2(a, b, T{}), in_piece = (column % 8 + c) * 2;
        const int unit = column % kPanelValues / 8;
        StoreShared32(panel + Swizzled<kPanelBytes>(head, unit) + in_piece, rounded);
        StoreShared32(panel + Swizzled<kPanelBytes>(head + kMlaHeads, unit) + in_piece,
                      PackRest2(a, b, rounded, T{}));
      }
    }
  }
}

// Four 8x8 matrices of 16-bit values as mma's accumulators hold them, transposed; lane i gives the address of
// row i % 8 of matrix i / 8.
__device__ __forceinline__ void StoreMatrix4Transposed(uint32_t shared, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(shared),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// Weights of this thread's scores, [place of the head's pair][token][head], to `weights` (the address for
// this lane's row), and their rests behind them; returns their sums.
template <typename T>
__device__ __forceinline__ void StoreMlaWeights(const float (&score)[8], const float (&m)[4], bool rests,
                                                uint32_t weights, float (&sum)[4]) {
  float w[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float largest = m[i / 4 * 2 + i % 2];
    w[i] = exp2f(score[i] - (largest == -CUDART_INF_F ? 0.0f : largest));
  }
  uint32_t rounded[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    rounded[i] = Pack2(w[2 * i], w[2 * i + 1], T{});
    sum[i] = w[i / 2 * 4 + i % 2] + w[i / 2 * 4 + i % 2 + 2];
  }
  StoreMatrix4Transposed(weights, rounded);
  if (!rests) return;
  uint32_t rest[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) rest[i] = PackRest2(w[2 * i], w[2 * i + 1], rounded[i], T{});
  StoreMatrix4Transposed(weights + kMlaWeightsBytes, rest);
}

}  // namespace cachalot
