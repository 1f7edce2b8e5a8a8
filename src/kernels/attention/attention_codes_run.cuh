// A warp's attention over runs of 16 tokens of a quantised cache with heads of 64 or 128: sixteen rows (token, query head of a group), INT8
// scores from codes as they come out of memory, F16 weighted sums. Codes go to a ring in shared memory that is the warp's own
// (run_slot.h), several runs ahead, and from there to registers, where they come apart (code_fragments.h): no barrier between warps.
//
// Bound: memory. k6v8, heads of 128: 228 bytes a token; at an H200's 4.3 TB/s an SM gets 18.6 bytes a clock, a run of 16 tokens 196
// clocks. Under way: twelve warps on an SM times four runs of 3,648 bytes, 175 KB, where 1 us of latency wants 33.
//
// A value's scale goes into its weight where a token has one, and into the values where it has one for each 32 values; both relative to
// the largest power of two among the scales so far, so that F16 holds the products whatever the values' size.
#pragma once

#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/tensor_core.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_codes_queries.cuh"
#include "kernels/attention/attention_codes_slot.cuh"
#include "kernels/attention/attention_run.cuh"

namespace cachalot {

inline constexpr uint32_t kLeastExponent = 16 << 7;  // of a scale, in BF16's place; below those of scales that are not 0
// Scales that weights (or values, where they have them in groups) are multiplied by are this much more than they stand for relative to the
// largest one's power of two; sums are in units of kValueUnit.
template <typename Value>
inline constexpr float kValueBoost = Value::kOffsets ? 0x1p14f : 0x1p8f;
template <typename Value>
inline constexpr float kValueUnit = Value::kOffsets ? 0x1p10f : 0x1p-8f;
inline constexpr uint32_t kSixteenth = 0x2c002c00u;   // twice, as F16
inline constexpr uint32_t kMinusEight = 0x80088008u;  // times 2^-24, twice, as F16

template <typename Value>
struct CodeState {
  float o[Value::kTiles][4];     // in units of the largest scale's power of two times kValueUnit
  float offset[4];               // of integer values: sums of weights and scales, what the sums have of kOffset
  float m[2];                    // of scores before their row's factor
  float l[2];                    // this thread's part
  uint32_t exponent;             // of the largest scale, in BF16's place

  __device__ void Clear() {
#pragma unroll
    for (auto& tile : o) {
#pragma unroll
      for (float& value : tile) value = 0;
    }
    if constexpr (Value::kOffsets) {
#pragma unroll
      for (float& value : offset) value = 0;
    }
    m[0] = m[1] = -CUDART_INF_F;
    l[0] = l[1] = 0;
    exponent = kLeastExponent;
  }
  // Sums as they are, maxima in units of log2: what is merged.
  __device__ void Finish(const float (&factor)[2]) {
    const float unit = __uint_as_float(exponent << 16) * kValueUnit<Value>;
#pragma unroll
    for (int j = 0; j < Value::kTiles; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if constexpr (Value::kOffsets) o[j][c] = __fmaf_rn(offset[c], -Value::kOffset * 0x1p-24f, o[j][c]);
        o[j][c] *= unit;
      }
    }
    m[0] *= factor[0];
    m[1] *= factor[1];
  }
};

// Row g (r = 0) or g + 8 of the sums to `to` [dim].
template <typename Value>
__device__ __forceinline__ void StoreSums(const CodeState<Value>& state, int r, int quad, float* to) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
#pragma unroll
    for (int j = 0; j < Value::kTiles; j += 4) {
      *reinterpret_cast<float4*>(to + Value::ColumnOf(2 * quad + e, j)) = {state.o[j][2 * r + e], state.o[j + 1][2 * r + e],
                                                                              state.o[j + 2][2 * r + e], state.o[j + 3][2 * r + e]};
    }
  }
}

// s[tile][c]: rows g (c < 2) and g + 8, this lane's token 2 tile + c % 2; without the row's factor.
template <typename F>
__device__ __forceinline__ void Scores(const RunCodes<F>& codes, const CodeQueries<F>& q, float (&s)[2][4]) {
  using Key = typename F::Key;
  const int quad = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const auto scale = [&](int c, int group) {
      const int at = (2 * tile + c % 2) * Key::kGroups + group;
      return ScaleOf(codes.key_scales[at / 2], at % 2 != 0);
    };
    if constexpr (F::kInteger && !Key::kGrouped) {
      int sum[4] = {q.starts[0][0], q.starts[0][0], q.starts[1][0], q.starts[1][0]};
#pragma unroll
      for (int step = 0; step < Key::kSteps; ++step) {
        MmaBytes<Key::kSigned>(sum, q.words[step], Key::Take(codes.key[tile], codes.high[tile], quad, step));
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) s[tile][c] = __int2float_rn(sum[c]) * scale(c, 0);
    } else if constexpr (F::kInteger) {
#pragma unroll
      for (float& score : s[tile]) score = 0;
#pragma unroll
      for (int step = 0; step < Key::kSteps; ++step) {
        int sum[4] = {q.starts[0][step], q.starts[0][step], q.starts[1][step], q.starts[1][step]};
        MmaBytes<Key::kSigned>(sum, q.words[step], Key::Take(codes.key[tile], codes.high[tile], quad, step));
#pragma unroll
        for (int c = 0; c < 4; ++c) s[tile][c] = __fmaf_rn(__int2float_rn(sum[c]), scale(c, step), s[tile][c]);
      }
    } else {
      float sum[4] = {0, 0, 0, 0};
#pragma unroll
      for (int w = 0; w < Key::kWords; ++w) {
        const uint32_t b0 = HalvesOfE4M3(codes.key[tile][w], false), b1 = HalvesOfE4M3(codes.key[tile][w], true);
        Mma(sum, q.words[w], b0, b1, __half{});
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) s[tile][c] = sum[c] * scale(c, 0);
    }
  }
}

// Scores of tokens that a row does not see become -infinity.
__device__ __forceinline__ void HideUnseen(float (&s)[2][4], int t0, const Visible& visible) {
  const int quad = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int t = t0 + 4 * quad + 2 * tile + c % 2;
      if (t < visible.begin[c / 2] || t >= visible.end[c / 2]) s[tile][c] = -CUDART_INF_F;
    }
  }
}

// The run's scores become weights in F32; what the state's sums are then to be multiplied by.
template <typename Value>
__device__ __forceinline__ void SoftmaxRun(float (&s)[2][4], const float (&factor)[2], CodeState<Value>* state, float (&rescale)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float largest = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
    largest = fmaxf(largest, state->m[r]);
    const float base = largest == -CUDART_INF_F ? 0.0f : -largest * factor[r];
    rescale[r] = largest == state->m[r] ? 1.0f : Exp2(__fmaf_rn(state->m[r], factor[r], base));
    state->m[r] = largest;
    float sum = 0;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int c = 2 * r; c < 2 * r + 2; ++c) {
        s[tile][c] = Exp2(__fmaf_rn(s[tile][c], factor[r], base));
        sum += s[tile][c];
      }
    }
    state->l[r] = __fmaf_rn(state->l[r], rescale[r], sum);
  }
}

// Weights become operand A; what the state holds is scaled to them. Of the lane's four tokens `scales` has what its values are multiplied by,
// `value_scale` what that is relative to the state.
template <typename Value>
__device__ __forceinline__ void ScaleRun(const float (&s)[2][4], const float (&rescale)[2], const uint32_t (&scales)[2], CodeState<Value>* state,
                                         uint32_t (&weights)[4], float (&value_scale)[4]) {
  const uint32_t pair = __vmaxu2(scales[0], scales[1]);
  const uint32_t exponent = max(pair >> 16, pair & 0xffffu) & 0x7f80u;
  if (__any_sync(kAllLanes, rescale[0] != 1.0f || rescale[1] != 1.0f || exponent > state->exponent)) {
    const uint32_t most = max(state->exponent, __reduce_max_sync(kAllLanes, exponent));
    const int down = static_cast<int>(most - state->exponent) >> 7;
    const float unit = __uint_as_float(static_cast<uint32_t>(max(127 - down, 0)) << 23);
    state->exponent = most;
#pragma unroll
    for (auto& tile : state->o) {
#pragma unroll
      for (int c = 0; c < 4; ++c) tile[c] *= rescale[c / 2] * unit;
    }
    if constexpr (Value::kOffsets) {
#pragma unroll
      for (int c = 0; c < 4; ++c) state->offset[c] *= rescale[c / 2] * unit;
    }
  }
  const float inverse = __uint_as_float((254u << 23) - (state->exponent << 16)) * kValueBoost<Value>;
#pragma unroll
  for (int i = 0; i < 4; ++i) value_scale[i] = ScaleOf(scales[i / 2], i % 2 != 0) * inverse;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int tile = i / 2, c = i % 2 * 2;  // row g + 8 (i % 2), tokens 2 tile and 2 tile + 1
    if constexpr (Value::kGrouped) {
      weights[i] = Pack2(s[tile][c], s[tile][c + 1], __half{});
    } else {
      weights[i] = Pack2(s[tile][c] * value_scale[2 * tile], s[tile][c + 1] * value_scale[2 * tile + 1], __half{});
    }
  }
}

// From scores to operand A. `whole`: every row sees every token.
template <typename Value>
__device__ __forceinline__ void WeighRun(float (&s)[2][4], const uint32_t (&scales)[2], int t0, bool whole, const Visible& visible,
                                         const float (&factor)[2], CodeState<Value>* state, uint32_t (&weights)[4], float (&value_scale)[4]) {
  float rescale[2];
  if (!whole) HideUnseen(s, t0, visible);
  SoftmaxRun(s, factor, state, rescale);
  ScaleRun(s, rescale, scales, state, weights, value_scale);
}

template <typename F>
__device__ __forceinline__ void AddValues(const RunCodes<F>& codes, const uint32_t (&weights)[4], const float (&value_scale)[4],
                                          CodeState<typename F::Value>* state) {
  using Value = typename F::Value;
  if constexpr (Value::kGrouped) {
    // Codes are F16's least numbers as they come. Less 8 they have four bits, a scale has eight, so that F16 holds the products; the half that is
    // then missing is added in the end.
    const uint32_t low0 = Pack2(value_scale[0], value_scale[1], __half{}), low1 = Pack2(value_scale[2], value_scale[3], __half{});
    const uint32_t high0 = Scale2(low0, kSixteenth), high1 = Scale2(low1, kSixteenth);
    const uint32_t start0 = Scale2(low0, kMinusEight), start1 = Scale2(low1, kMinusEight);
    Mma(state->offset, weights, low0, low1, __half{});
#pragma unroll
    for (int w = 0; w < Value::kWords; ++w) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t b0 = ScaleAndAdd2(Value::HalfPair(codes.value[0][w], codes.value[1][w], i), i < 4 ? low0 : high0, start0);
        const uint32_t b1 = ScaleAndAdd2(Value::HalfPair(codes.value[2][w], codes.value[3][w], i), i < 4 ? low1 : high1, start1);
        Mma(state->o[Value::TileOf(w, i)], weights, b0, b1, __half{});
      }
    }
  } else {
#pragma unroll
    for (int w = 0; w < Value::kWords; ++w) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const uint32_t pair0 = Value::BytePairs(codes.value[0][w], codes.value[1][w], upper);
        const uint32_t pair1 = Value::BytePairs(codes.value[2][w], codes.value[3][w], upper);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          Mma(state->o[Value::TileOf(w, 2 * upper + i)], weights, HalvesOfE4M3(pair0, i != 0), HalvesOfE4M3(pair1, i != 0), __half{});
        }
      }
    }
  }
}

// Where every step-th run of a head from `first` on lies, of `count` in all; asked for in turn by a warp.
class RunPlaces {
 public:
  __device__ __forceinline__ RunPlaces(const PagedKv& kv, const CodePlanes& planes, int slot, int kv_head, int first, int step, int count)
      : data_(kv.data + kv_head * planes.head_bytes),
        table_(kv.block_tables + slot * kv.table_stride),
        block_bytes_(kv.block_bytes),
        block_tokens_(kv.block_tokens),
        first_(first),
        step_(step),
        count_(count) {
    if (count <= 0) return;
    Fetch(0, &block_, &row_);
    Fetch(32, &next_block_, &next_row_);
  }
  __device__ __forceinline__ int count() const { return count_; }
  __device__ __forceinline__ int PositionOf(int i) const { return (first_ + i * step_) * kRunTokens; }
  // For 0, 1, 2 ... in turn.
  __device__ __forceinline__ RunPlace At(int i) {
    if (i - base_ == 32) {
      base_ += 32;
      block_ = next_block_;
      row_ = next_row_;
      Fetch(base_ + 32, &next_block_, &next_row_);
    }
    const int64_t block = __shfl_sync(kAllLanes, block_, i - base_);
    return {data_ + block * block_bytes_, __shfl_sync(kAllLanes, row_, i - base_), PositionOf(i)};
  }

 private:
  __device__ __forceinline__ void Fetch(int from, int* block, int* row) const {
    const int t = PositionOf(min(from + static_cast<int>(threadIdx.x) % 32, count_ - 1));
    *block = table_[t / block_tokens_];
    *row = t % block_tokens_;
  }

  const std::byte* data_;
  const int32_t* table_;
  int64_t block_bytes_;
  int block_tokens_, first_, step_, count_;
  int base_ = 0, block_ = 0, row_ = 0, next_block_ = 0, next_row_ = 0;
};

// The run's softmax and values.
template <typename F>
__device__ __forceinline__ void TakeRun(const RunCodes<F>& codes, float (&s)[2][4], int t0, bool whole, const Visible& visible,
                                        const float (&factor)[2], CodeState<typename F::Value>* state) {
  uint32_t weights[4];
  float value_scale[4];
  WeighRun(s, codes.value_scales, t0, whole, visible, factor, state, weights, value_scale);
  AddValues<F>(codes, weights, value_scale, state);
}

// How a warp has its rows: sixteen, or as columns (attention_codes_columns.cuh).
template <typename F, bool kColumns>
struct RunForm;
template <typename F>
struct RunForm<F, false> {
  using Queries = CodeQueries<F>;
  using State = CodeState<typename F::Value>;
  using Scores = float[2][4];
};

// Every step-th run of a tile and head from `first` on, of `count` in all, through a ring of kSlots slots in shared memory that is the warp's
// own: what a lane copies others read, but no other warp.
template <typename F, int kSlots, bool kColumns = false>
class RunReader {
 public:
  using Form = RunForm<F, kColumns>;

  __device__ __forceinline__ RunReader(const PagedKv& kv, const CodePlanes& planes, int slot, int kv_head, int first, int step, int count, int low,
                                       int high, uint32_t ring)
      : planes_(planes), places_(kv, planes, slot, kv_head, first, step, count), low_(low), high_(high), ring_(ring), slot_(ring) {}
  // Asks for the first ones. `fresh`: positions from there on are written by kernels in front of this one, for which it then waits.
  __device__ __forceinline__ void Start(int fresh, bool* waited) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (i < places_.count()) {
        const RunPlace at = places_.At(i);
        if (!*waited && at.t0 + kRunTokens > fresh) {
          WaitForEarlierKernels();
          *waited = true;
        }
        CopyRun<F>(planes_, at, ring_ + i * SlotOf<F>::kBytes);
      }
      CommitAsync();
    }
  }
  // Runs that lie in [whole_low, whole_high) are seen by all rows.
  __device__ __forceinline__ void Attend(const typename Form::Queries& q, const Visible& visible, int whole_low, int whole_high,
                                         typename Form::State* state) {
#pragma unroll 1
    for (int i = 0; i < places_.count(); ++i) {
      const int t0 = places_.PositionOf(i);
      RunCodes<F, kColumns> codes;
      typename Form::Scores s;
      WaitAsync<kSlots - 1>();
      __syncwarp();  // every lane's copies are there
      ReadKeys(slot_, &codes);
      ReadValues(slot_, t0, low_, high_, &codes);
      Scores<F>(codes, q, s);
      __syncwarp();  // every lane has read
      if (i + kSlots < places_.count()) CopyRun<F>(planes_, places_.At(i + kSlots), slot_);
      CommitAsync();
      TakeRun<F>(codes, s, t0, t0 >= whole_low && t0 + kRunTokens <= whole_high, visible, q.factor, state);
      slot_ += SlotOf<F>::kBytes;
      if (slot_ == ring_ + kSlots * SlotOf<F>::kBytes) slot_ = ring_;
    }
  }

 private:
  const CodePlanes& planes_;
  RunPlaces places_;
  int low_, high_;
  uint32_t ring_, slot_;
};

}  // namespace cachalot
