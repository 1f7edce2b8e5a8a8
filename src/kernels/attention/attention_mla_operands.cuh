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

__device__ __forceinline__ void StoreShared64(uint32_t shared, uint32_t a, uint32_t b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};\n" ::"r"(shared), "r"(a), "r"(b) : "memory");
}

// The queries of a sequence, scaled for softmax in base 2, and their rests; by all consumers, each of which
// has four columns of each panel. Of `heads` 0 all are zeros.
template <typename T>
__device__ __forceinline__ void StoreMlaQueries(const AttentionParams& p, int64_t row, int heads,
                                                bool aligned, uint32_t queries) {
  constexpr int kPanels = kMlaKeyDim / kPanelValues, kThreadsOfHead = kPanelValues / 4;
  static_assert(kMlaConsumers == kMlaHeads * kThreadsOfHead);
  const int head = static_cast<int>(threadIdx.x) / kThreadsOfHead;
  const int column = static_cast<int>(threadIdx.x) % kThreadsOfHead * 4;
  const float* from = p.q + row * p.q_token_stride + head * p.q_head_stride + column;
  float4 q[kPanels];
#pragma unroll
  for (float4& four : q) four = {0, 0, 0, 0};
  if (head < heads && aligned) {
#pragma unroll
    for (int i = 0; i < kPanels; ++i) q[i] = __ldcg(reinterpret_cast<const float4*>(from + i * kPanelValues));
  } else if (head < heads) {
#pragma unroll
    for (int i = 0; i < kPanels; ++i) {
      const float* four = from + i * kPanelValues;
      q[i] = {__ldcg(four), __ldcg(four + 1), __ldcg(four + 2), __ldcg(four + 3)};
    }
  }
  const float scale = p.scale * kLog2E;
  const uint32_t to = queries + Swizzled<kPanelBytes>(head, column / 8) + column % 8 * 2;
#pragma unroll
  for (int i = 0; i < kPanels; ++i) {
    const float a = q[i].x * scale, b = q[i].y * scale, c = q[i].z * scale, d = q[i].w * scale;
    const uint32_t low = Pack2(a, b, T{}), high = Pack2(c, d, T{});
    StoreShared64(to + i * kMlaQueryPanelBytes, low, high);
    StoreShared64(to + i * kMlaQueryPanelBytes + kMlaHeads * kPanelBytes, PackRest2(a, b, low, T{}),
                  PackRest2(c, d, high, T{}));
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
