// Rows of queries on their way to keys in codes: a warp has a row, each lane values that lie side by side, and rotates them as the keys are.
#pragma once

#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_split.cuh"
#include "kernels/attention/latent_tile.h"
#include "kernels/common/cuda_kv_codes.h"
#include "quant/kv_rotate.h"

namespace cachalot {

// RotateKv, in its order, of blocks that kLanes lanes hold.
template <int kLanes, int kValues>
__device__ __forceinline__ void RotateByLanes(float (&x)[kValues]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 1; half < kValues; half *= 2) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      if ((i & half) != 0) continue;
      const float a = x[i], b = x[i + half];
      x[i] = __fadd_rn(a, b);
      x[i + half] = __fsub_rn(a, b);
    }
  }
#pragma unroll
  for (int mask = 1; mask < kLanes; mask *= 2) {
#pragma unroll
    for (float& value : x) {
      const float other = __shfl_xor_sync(kAllLanes, value, mask);
      value = (lane & mask) != 0 ? __fsub_rn(other, value) : __fadd_rn(value, other);
    }
  }
}

// This lane's values of what begins at `from`; four at a time where it is aligned.
template <int kValues>
__device__ __forceinline__ void LoadQueryValues(const float* from, bool aligned, float (&x)[kValues]) {
  from += static_cast<int>(threadIdx.x) % 32 * kValues;
  if (kValues % 4 == 0 && aligned) {
#pragma unroll
    for (int i = 0; i < kValues / 4; ++i) {
      const float4 four = *reinterpret_cast<const float4*>(from + 4 * i);
      x[4 * i] = four.x, x[4 * i + 1] = four.y, x[4 * i + 2] = four.z, x[4 * i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kValues; ++i) x[i] = from[i];
  }
}

// A query over latents: its coded part, rotated, and its exact one, in the units of the rotated one. Of a row that does not exist zeros.
struct LatentQueryRow {
  static constexpr int kValues = kLatentDim / 32;
  float x[kValues];
  float tail[kExactDim / 32];

  __device__ __forceinline__ LatentQueryRow(const AttentionParams& p, const CodePlanes& planes, const TileRow& row, bool aligned) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (float& value : x) value = 0;
    tail[0] = tail[1] = 0;
    if (row.position >= 0) {
      const float* from = p.q + row.row * p.q_token_stride + row.head * p.q_head_stride;
      LoadQueryValues(from, aligned, x);
      tail[0] = from[kLatentDim + lane * 2] * static_cast<float>(planes.rotation);
      tail[1] = from[kLatentDim + lane * 2 + 1] * static_cast<float>(planes.rotation);
    }
    if (planes.rotation > 1) RotateByLanes<kMaxKvRotation / kValues>(x);
  }
};

}  // namespace cachalot
