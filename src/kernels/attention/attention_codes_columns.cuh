// A warp's attention over runs of codes for eight rows or fewer (token, query head of a group), which are the columns of mma's products:
// tokens are the rows of the scores, a head's values those of the weighted sums. What attention_codes_run.cuh does for sixteen rows takes
// half the products, exponentials and registers this way, from the same words in the same order.
//
// Lane = 4 g + quad has rows 2 quad and 2 quad + 1. Of a run it has the scores of tokens TokenOf(0, g) and TokenOf(1, g), and as before the
// values of tokens 4 quad .. 4 quad + 3; weights change places between lanes as matrices of eight by eight. A row's largest score is only
// looked for among the lanes when one of them has met a larger one.
#pragma once

#include "kernels/attention/attention_codes_run.cuh"

namespace cachalot {

inline constexpr int kColumnRows = 8;

template <typename F>
struct ColumnQueries {
  uint32_t words[SharedQueries<F>::kSteps][2];
  int starts[2][F::Key::kGroups];  // of integer keys
  float factor[2];
};

template <typename F>
__device__ __forceinline__ void LoadQueries(const SharedQueries<F>& shared, ColumnQueries<F>* q) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 0; step < SharedQueries<F>::kSteps; ++step) {
    const uint4 four = shared.words[step * 32 + lane];
    q->words[step][0] = four.x, q->words[step][1] = four.z;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = 2 * (lane % 4) + r;
    q->factor[r] = shared.factors[row];
    if constexpr (F::kInteger) {
#pragma unroll
      for (int group = 0; group < F::Key::kGroups; ++group) q->starts[r][group] = shared.starts[row][group];
    }
  }
}

// o[j][2 i + r]: row 2 quad + r of tile 2 j + i, of which the lane has column g. The rest as in CodeState.
template <typename Value>
struct ColumnState {
  float o[Value::kTiles / 2][4];
  float offset[4];  // [2 i + r], the same for both i
  float m[2];
  float l[2];
  uint32_t exponent;

  __device__ void Clear() {
#pragma unroll
    for (auto& pair : o) {
#pragma unroll
      for (float& value : pair) value = 0;
    }
#pragma unroll
    for (float& value : offset) value = 0;
    m[0] = m[1] = -CUDART_INF_F;
    l[0] = l[1] = 0;
    exponent = kLeastExponent;
  }
  __device__ __forceinline__ void Scale(const float (&by)[2]) {
#pragma unroll
    for (auto& pair : o) {
#pragma unroll
      for (int c = 0; c < 4; ++c) pair[c] *= by[c % 2];
    }
    if constexpr (Value::kOffsets) {
#pragma unroll
      for (int c = 0; c < 4; ++c) offset[c] *= by[c % 2];
    }
  }
  __device__ void Finish(const float (&factor)[2]) {
    const float unit = __uint_as_float(exponent << 16) * kValueUnit<Value>;
#pragma unroll
    for (auto& pair : o) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if constexpr (Value::kOffsets) pair[c] = __fmaf_rn(offset[c], -Value::kOffset * 0x1p-24f, pair[c]);
        pair[c] *= unit;
      }
    }
    m[0] *= factor[0];
    m[1] *= factor[1];
  }
};

// For MergePiece: the first `here` rows.
template <typename Value, typename S>
__device__ __forceinline__ void LeaveSums(const ColumnState<Value>& state, int, int here, S& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, g = lane / 4, quad = lane % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float l = state.l[r];
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) l += __shfl_xor_sync(kAllLanes, l, mask);
    const int row = 2 * quad + r;
    if (row >= here) continue;
    if (g == 0) {
      shared.warp_m[warp][row] = state.m[r];
      shared.warp_l[warp][row] = l;
    }
#pragma unroll
    for (int j = 0; j < Value::kTiles / 2; j += 2) {
      *reinterpret_cast<float4*>(shared.merge[warp][row] + Value::ColumnOf(g, 2 * j)) = {state.o[j][r], state.o[j][2 + r], state.o[j + 1][r],
                                                                                        state.o[j + 1][2 + r]};
    }
  }
}

// s[2 tile + r]: row 2 quad + r and token TokenOf(tile, g), without the row's factor.
template <typename F>
__device__ __forceinline__ void Scores(const RunCodes<F, true>& codes, const ColumnQueries<F>& q, float (&s)[4]) {
  using Key = typename F::Key;
  const int quad = static_cast<int>(threadIdx.x) % 4;
  const auto scale = [&](int tile, int group) {
    const int at = tile * Key::kGroups + group;
    return ScaleOf(codes.key_scales[at / 2], at % 2 != 0);
  };
  if constexpr (F::kInteger) {
    int sum[4];
#pragma unroll
    for (float& score : s) score = 0;
#pragma unroll
    for (int step = 0; step < Key::kSteps; ++step) {
      if (step == 0 || Key::kGrouped) {
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[c] = q.starts[c % 2][Key::kGrouped ? step : 0];
      }
      const OperandB first = Key::Take(codes.key[0], codes.high[0], quad, step), second = Key::Take(codes.key[1], codes.high[1], quad, step);
      const uint32_t keys[4] = {first.low, second.low, first.high, second.high};
      MmaKeyBytes<Key::kSigned>(sum, keys, {q.words[step][0], q.words[step][1]});
      if (!Key::kGrouped && step + 1 < Key::kSteps) continue;
#pragma unroll
      for (int c = 0; c < 4; ++c) s[c] = __fmaf_rn(__int2float_rn(sum[c]), scale(c / 2, Key::kGrouped ? step : 0), s[c]);
    }
  } else {
    float sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int w = 0; w < Key::kWords; ++w) {
      const uint32_t keys[4] = {HalvesOfE4M3(codes.key[0][w], false), HalvesOfE4M3(codes.key[1][w], false), HalvesOfE4M3(codes.key[0][w], true),
                                HalvesOfE4M3(codes.key[1][w], true)};
      Mma(sum, keys, q.words[w][0], q.words[w][1], __half{});
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) s[c] = sum[c] * scale(c / 2, 0);
  }
}

// Softmax of the run's scores and its values. `whole`: every row sees every token.
template <typename F>
__device__ __forceinline__ void TakeRun(const RunCodes<F, true>& codes, float (&s)[4], int t0, bool whole, const Visible& visible,
                                        const float (&factor)[2], ColumnState<typename F::Value>* state) {
  using Value = typename F::Value;
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  if (!whole) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int t = t0 + TokenOf(c / 2, g);
      if (t < visible.begin[c % 2] || t >= visible.end[c % 2]) s[c] = -CUDART_INF_F;
    }
  }
  const float largest[2] = {fmaxf(s[0], s[2]), fmaxf(s[1], s[3])};
  const uint32_t both = __vmaxu2(codes.value_scales[0], codes.value_scales[1]);
  const uint32_t exponent = max(both >> 16, both & 0xffffu) & 0x7f80u;
  if (__any_sync(kAllLanes, largest[0] > state->m[0] || largest[1] > state->m[1] || exponent > state->exponent)) {
    const uint32_t most = max(state->exponent, __reduce_max_sync(kAllLanes, exponent));
    const int down = static_cast<int>(most - state->exponent) >> 7;
    const float unit = __uint_as_float(static_cast<uint32_t>(max(127 - down, 0)) << 23);
    state->exponent = most;
    float by[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m = fmaxf(largest[r], state->m[r]);
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, mask));
      const float rescale = m == state->m[r] ? 1.0f : Exp2((state->m[r] - m) * factor[r]);
      state->m[r] = m;
      state->l[r] *= rescale;
      by[r] = rescale * unit;
    }
    state->Scale(by);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float base = state->m[r] == -CUDART_INF_F ? 0.0f : -state->m[r] * factor[r];
    s[r] = Exp2(__fmaf_rn(s[r], factor[r], base));
    s[2 + r] = Exp2(__fmaf_rn(s[2 + r], factor[r], base));
    state->l[r] += s[r] + s[2 + r];
  }
  const float inverse = __uint_as_float((254u << 23) - (state->exponent << 16)) * kValueBoost<Value>;
  if constexpr (Value::kGrouped) {
    float value_scale[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) value_scale[i] = ScaleOf(codes.value_scales[i / 2], i % 2 != 0) * inverse;
    const uint32_t weights[2] = {Transposed(Pack2(s[0], s[1], __half{})), Transposed(Pack2(s[2], s[3], __half{}))};
    // As in AddValues.
    const uint32_t low0 = Pack2(value_scale[0], value_scale[1], __half{}), low1 = Pack2(value_scale[2], value_scale[3], __half{});
    const uint32_t high0 = Scale2(low0, kSixteenth), high1 = Scale2(low1, kSixteenth);
    const uint32_t start0 = Scale2(low0, kMinusEight), start1 = Scale2(low1, kMinusEight);
    Mma(state->offset, {low0, low0, low1, low1}, weights[0], weights[1], __half{});
#pragma unroll
    for (int w = 0; w < Value::kWords; ++w) {
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        const uint32_t by0 = i < 4 ? low0 : high0, by1 = i < 4 ? low1 : high1;
        const uint32_t values[4] = {ScaleAndAdd2(Value::HalfPair(codes.value[0][w], codes.value[1][w], i), by0, start0),
                                    ScaleAndAdd2(Value::HalfPair(codes.value[0][w], codes.value[1][w], i + 1), by0, start0),
                                    ScaleAndAdd2(Value::HalfPair(codes.value[2][w], codes.value[3][w], i), by1, start1),
                                    ScaleAndAdd2(Value::HalfPair(codes.value[2][w], codes.value[3][w], i + 1), by1, start1)};
        Mma(state->o[Value::TileOf(w, i) / 2], values, weights[0], weights[1], __half{});
      }
    }
  } else {
    const float scale0 = ScaleOf(codes.value_scales[0], false) * inverse, scale1 = ScaleOf(codes.value_scales[0], true) * inverse;
    const uint32_t weights[2] = {Transposed(Pack2(s[0] * scale0, s[1] * scale0, __half{})), Transposed(Pack2(s[2] * scale1, s[3] * scale1, __half{}))};
#pragma unroll
    for (int w = 0; w < Value::kWords; ++w) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const uint32_t pair0 = Value::BytePairs(codes.value[0][w], codes.value[1][w], upper);
        const uint32_t pair1 = Value::BytePairs(codes.value[2][w], codes.value[3][w], upper);
        const uint32_t values[4] = {HalvesOfE4M3(pair0, false), HalvesOfE4M3(pair0, true), HalvesOfE4M3(pair1, false), HalvesOfE4M3(pair1, true)};
        Mma(state->o[Value::TileOf(w, 2 * upper) / 2], values, weights[0], weights[1], __half{});
      }
    }
  }
}

template <typename F>
struct RunForm<F, true> {
  using Queries = ColumnQueries<F>;
  using State = ColumnState<typename F::Value>;
  using Scores = float[4];
};

}  // namespace cachalot
