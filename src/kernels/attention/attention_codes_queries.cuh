// The sixteen query rows of a tile over codes: rotated and, for integer keys, rounded once into shared memory, as operands A.
#pragma once

#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_codes_ops.cuh"
#include "kernels/attention/attention_query_rows.cuh"

namespace cachalot {

template <KvCode kKeyCode, KvCode kValueCode, int kHeadDim>
struct CodeFormat {
  static constexpr KvCode kKey = kKeyCode;
  static constexpr KvCode kValue = kValueCode;
  static constexpr int kDim = kHeadDim;
  static constexpr bool kInteger = kKeyCode != KvCode::kE4M3;
  using Key = KeyFragments<kKeyCode, kHeadDim>;
  using Value = ValueFragments<kValueCode, kHeadDim>;
};

inline constexpr int kCodeRows = 16;

// A tile's queries in shared memory.
template <typename F, bool kInteger = F::kInteger>
struct SharedQueries;
template <typename F>
struct SharedQueries<F, true> {
  static constexpr int kSteps = F::Key::kSteps;
  uint4 words[kSteps * 32];                    // QueryWord
  int32_t starts[kCodeRows][F::Key::kGroups];  // minus the bias times the sum of the query's codes
  float factors[kCodeRows];                    // of the integer sums, in units of log2
};
template <typename F>
struct SharedQueries<F, false> {
  static constexpr int kSteps = F::kDim / 16;
  uint4 words[kSteps * 32];                    // QueryWord: F16, in units of the row's largest power of two
  float factors[kCodeRows];
};

// A row of them by a warp: `row` may not exist.
template <typename F>
__device__ __forceinline__ void StoreQueryRow(const AttentionParams& p, const CodePlanes& planes, const TileRow& row, int r, bool aligned,
                                              SharedQueries<F>* shared) {
  constexpr int kValues = F::kDim / 32;  // of a lane, side by side
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float x[kValues];
#pragma unroll
  for (float& value : x) value = 0;
  if (row.position >= 0) {
    LoadQueryValues(p.q + row.row * p.q_token_stride + row.head * p.q_head_stride, aligned, x);
  }
  if (planes.rotation > 1) RotateByLanes<32>(x);  // F::kDim
  float largest = 0;
#pragma unroll
  for (const float value : x) largest = MaxOrNan(largest, fabsf(value));
  const float factor = p.scale / static_cast<float>(planes.rotation) * kLog2E;
  if constexpr (F::kInteger) {
    const CodedQueryScale scale = QueryScaleOfWarp(largest);
    uint32_t word = 0;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int code = static_cast<int>(rintf(__fmul_rn(x[i], scale.inverse)));  // NaN: 0, and the factor is one
      word |= (static_cast<uint32_t>(code) & 0xffu) << (8 * i);
      sum += code;
    }
    using Key = typename F::Key;
    const int first = lane * kValues;
    auto* to = reinterpret_cast<uint32_t*>(shared->words) + QueryWord(r, Key::QuadOf(first), Key::StepOf(first), Key::HalfOf(first));
    if constexpr (kValues == 4) {
      *to = word;
    } else {
      reinterpret_cast<uint16_t*>(to)[lane % 2] = static_cast<uint16_t>(word);
    }
    constexpr int kLanes = 32 / F::Key::kGroups;  // of a group
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
    if (lane % kLanes == 0) shared->starts[r][lane / kLanes] = -F::Key::kBias * sum;
    // Of a query of zeros all scores are 0 whatever the factor.
    if (lane == 0) shared->factors[r] = scale.scale == 0 ? 1.0f : scale.scale * F::Key::kStep * factor;
  } else {
    const bool finite = __all_sync(kAllLanes, largest <= FLT_MAX);
    largest = WarpMax(largest);
    // In units of the largest value's power of two.
    const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 1u), 253u);
    const float inverse = __uint_as_float((254 - exponent) << 23);
#pragma unroll
    for (int i = 0; i < kValues; i += 2) {
      const float a = finite ? x[i] * inverse : 0.0f, b = finite ? x[i + 1] * inverse : 0.0f;
      // A step of 16 values is a word of a lane's codes: its first two bytes, then the other two.
      const int value = lane * kValues + i, of_quad = F::kDim / 4;
      reinterpret_cast<uint32_t*>(shared->words)[QueryWord(r, value / of_quad, value % of_quad / 4, value % 4 / 2)] = Pack2(a, b, __half{});
    }
    if (lane == 0) shared->factors[r] = !finite ? CUDART_NAN_F : largest == 0 ? 1.0f : __uint_as_float(exponent << 23) * factor;
  }
}

// They as operands A.
template <typename F>
struct CodeQueries {
  uint32_t words[SharedQueries<F>::kSteps][4];
  int starts[2][F::Key::kGroups];  // of integer keys
  float factor[2];
};

template <typename F>
__device__ __forceinline__ void LoadQueries(const SharedQueries<F>& shared, CodeQueries<F>* q) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 0; step < SharedQueries<F>::kSteps; ++step) {
    const uint4 four = shared.words[step * 32 + lane];
    q->words[step][0] = four.x, q->words[step][1] = four.y, q->words[step][2] = four.z, q->words[step][3] = four.w;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r;
    q->factor[r] = shared.factors[row];
    if constexpr (F::kInteger) {
#pragma unroll
      for (int group = 0; group < F::Key::kGroups; ++group) q->starts[r][group] = shared.starts[row][group];
    }
  }
}

}  // namespace cachalot
