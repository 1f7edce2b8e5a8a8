// What the decode kernels for heads of 64 to 256 share: a warp's softmax over runs of 16 tokens, in the layout of mma's
// accumulators.
#pragma once

#include "device/cuda/tensor_core.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_split.cuh"
#include "kernels/attention/attention_tile.cuh"

namespace cachalot {

// Softmax numerators of one warp's runs, in the accumulators' layout (rows g and g + 8).
template <int kDim>
struct WarpState {
  float o[kDim / 8][4];
  float m[2];
  float l[2];  // this thread's part

  __device__ void Clear() {
#pragma unroll
    for (auto& tile : o) {
#pragma unroll
      for (float& value : tile) value = 0;
    }
    m[0] = m[1] = -CUDART_INF_F;
    l[0] = l[1] = 0;
  }
};

struct Visible {
  int begin[2];  // of rows g and g + 8
  int end[2];
};

// The weights of a run as an A fragment.
struct Weights {
  uint32_t high[4];
  uint32_t rest[4];
};

// Scores and their rests of 16 tokens at t0 become weights; what the state holds is scaled to them.
template <typename T, int kDim>
__device__ __forceinline__ void SoftmaxRun(float (&s)[2][4], const float (&rest)[2][4], int t0, const Visible& visible,
                                           WarpState<kDim>* state, Weights* p) {
  const int quad = threadIdx.x % 4;
  float largest[2] = {-CUDART_INF_F, -CUDART_INF_F};
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int t = t0 + n * 8 + quad * 2 + (c & 1);
      const bool seen = t >= visible.begin[c / 2] && t < visible.end[c / 2];
      s[n][c] = seen ? AddScoreRest(s[n][c], rest[n][c]) : -CUDART_INF_F;
      largest[c / 2] = fmaxf(largest[c / 2], s[n][c]);
    }
  }
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 1));
    largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 2));
    largest[r] = fmaxf(largest[r], state->m[r]);
    const bool none = largest[r] == -CUDART_INF_F;
    factor[r] = none ? 1.0f : exp2f(state->m[r] - largest[r]);
    state->m[r] = largest[r];
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int c = 2 * r; c < 2 * r + 2; ++c) {
        s[n][c] = none ? 0.0f : exp2f(s[n][c] - largest[r]);
        sum += s[n][c];
      }
    }
    state->l[r] = __fmaf_rn(state->l[r], factor[r], sum);
  }
  if (__any_sync(kAllLanes, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
    for (auto& tile : state->o) {
#pragma unroll
      for (int c = 0; c < 4; ++c) tile[c] *= factor[c / 2];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* of = s[i / 2] + i % 2 * 2;
    p->high[i] = Pack2(of[0], of[1], T{});
    p->rest[i] = PackRest2(of[0], of[1], p->high[i], T{});
  }
}

}  // namespace cachalot
