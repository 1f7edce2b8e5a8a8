// A warp's attention over runs of 16 tokens of a quantised cache with heads of 64 or 128: sixteen rows (token, query head of a group), INT8
// scores from codes as they come out of memory, F16 weighted sums. Codes go from memory to registers, two runs ahead, and come apart
// there (code_fragments.h): no shared memory, no copying warp, no barrier.
//
// Bound: memory. k6v8, heads of 128: 228 bytes a token; at an H200's 4.3 TB/s an SM gets 18.6 bytes a clock, a run of 16 tokens 196
// clocks. Its instructions, counted in the machine code without what is rarely done, are about 330 a warp, of which an SM issues four a
// clock: 83 clocks. Under way: 8 warps on an SM times two runs of 3,648 bytes: 58 KB, where 1 us of latency wants 33.
//
// A value's scale goes into its weight where a token has one, and into the values where it has one for each 32 values; both relative to
// the largest power of two among the scales so far, so that F16 holds the products whatever the values' size.
#pragma once

#include "device/cuda/tensor_core.cuh"
#include "device/cuda/value.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_codes.cuh"
#include "kernels/attention/attention_run.cuh"
#include "kernels/attention/code_fragments.h"

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
inline constexpr float kValueBoost = 256.0f;          // of weights and values relative to the largest scale
inline constexpr uint32_t kLeastExponent = 16 << 7;   // of a scale, in BF16's place; below those of scales that are not 0

// --- instructions ---

template <int kWords>
__device__ __forceinline__ void LoadWords(uint32_t (&to)[kWords], const std::byte* from) {
  if constexpr (kWords == 8) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from));
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n" : "=r"(to[4]), "=r"(to[5]), "=r"(to[6]), "=r"(to[7]) : "l"(from + 16));
  } else if constexpr (kWords == 4) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from));
  } else if constexpr (kWords == 2) {
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];\n" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
  } else {
    static_assert(kWords == 1);
    asm volatile("ld.global.u32 %0, [%1];\n" : "=r"(to[0]) : "l"(from));
  }
}
__device__ __forceinline__ uint32_t LoadHalfWord(const std::byte* from) {
  uint16_t value;
  asm volatile("ld.global.u16 %0, [%1];\n" : "=h"(value) : "l"(from));
  return value;
}

// c += a b over 32 bytes: a signed, b as it says.
template <bool kSigned>
__device__ __forceinline__ void MmaBytes(int (&c)[4], const uint32_t (&a)[4], OperandB b) {
  if constexpr (kSigned) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high));
  } else {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high));
  }
}

// The two E4M3 codes in the lower or upper half of a word, as F16.
__device__ __forceinline__ uint32_t HalvesOfE4M3(uint32_t word, bool upper) {
  uint32_t halves;
  if (upper) {
    asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %1;\ncvt.rn.f16x2.e4m3x2 %0, b;\n}\n" : "=r"(halves) : "r"(word));
  } else {
    asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %1;\ncvt.rn.f16x2.e4m3x2 %0, a;\n}\n" : "=r"(halves) : "r"(word));
  }
  return halves;
}

// 2^x; 0 where that is less than F32's least normal number.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// BF16 in a half of a word.
__device__ __forceinline__ float ScaleOf(uint32_t word, bool upper) { return __uint_as_float(upper ? word & 0xffff0000u : word << 16); }

__device__ __forceinline__ uint32_t SubAndScale2(uint32_t halves, uint32_t offset, uint32_t scales) {
  const __half2 moved = __hsub2(*reinterpret_cast<const __half2*>(&halves), *reinterpret_cast<const __half2*>(&offset));
  const __half2 scaled = __hmul2(moved, *reinterpret_cast<const __half2*>(&scales));
  return *reinterpret_cast<const uint32_t*>(&scaled);
}

// --- queries ---

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
    const float* from = p.q + row.row * p.q_token_stride + row.head * p.q_head_stride + lane * kValues;
    if constexpr (kValues == 4) {
      if (aligned) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
      } else {
#pragma unroll
        for (int i = 0; i < kValues; ++i) x[i] = from[i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kValues; ++i) x[i] = from[i];
    }
  }
  if (planes.rotation > 1) {  // F::kDim: RotateKv, in its order
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
    for (int mask = 1; mask < 32; mask *= 2) {
#pragma unroll
      for (float& value : x) {
        const float other = __shfl_xor_sync(kAllLanes, value, mask);
        value = (lane & mask) != 0 ? __fsub_rn(other, value) : __fadd_rn(value, other);
      }
    }
  }
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

// --- codes ---

template <typename F>
struct RunCodes {
  uint32_t key[2][F::Key::kWords];
  uint32_t high[2][F::Key::kHighWords == 0 ? 1 : F::Key::kHighWords];
  uint32_t key_scales[2 * F::Key::kGroups];  // of this lane's four tokens, token by token
  uint32_t value[4][F::Value::kWords];
  uint32_t value_scales[2];
};

// Where a run lies: its first token is the region's row `row` and has position t0.
struct RunPlace {
  const std::byte* region;
  int row;
  int t0;
};

// Offsets within a region fit into 32 bits: one wide addition a plane, the tokens of a lane lie at constant distances.
__device__ __forceinline__ const std::byte* RegionAt(const RunPlace& at, int offset) { return at.region + static_cast<uint32_t>(offset); }

// Also of tokens that nobody sees: those scores are never used.
template <typename F>
__device__ __forceinline__ void LoadKeys(const CodePlanes& planes, const RunPlace& at, RunCodes<F>* codes) {
  using Key = typename F::Key;
  static_assert(TokenOf(1, 5) - TokenOf(0, 5) == 2);
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, quad = lane % 4, token = at.row + TokenOf(0, g);
  const std::byte* main = RegionAt(at, planes.key.main + token * Key::kRowBytes + Key::MainOffset(quad, 0));
  if constexpr (Key::kHighWords > 0) {
    const std::byte* high = RegionAt(at, planes.key.high + token * Key::kHighRowBytes + Key::HighOffset(quad, 0));
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) LoadWords(codes->high[tile], high + tile * 2 * Key::kHighRowBytes);
  }
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    if constexpr (Key::kGrouped) {
#pragma unroll
      for (int w = 0; w < Key::kWords; ++w) {
        uint32_t word[1];
        LoadWords(word, main + tile * 2 * Key::kRowBytes + w * 16);
        codes->key[tile][w] = word[0];
      }
    } else {
      LoadWords(codes->key[tile], main + tile * 2 * Key::kRowBytes);
    }
  }
  LoadWords(codes->key_scales, RegionAt(at, planes.key.scales + (at.row + 4 * quad) * (2 * Key::kGroups)));
}

// Zeros for tokens outside [low, high): a weight of zero must not meet what is no number.
template <typename F>
__device__ __forceinline__ void LoadValues(const CodePlanes& planes, const RunPlace& at, int low, int high, RunCodes<F>* codes) {
  using Value = typename F::Value;
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, quad = lane % 4, token = at.row + 4 * quad;
  const std::byte* main = RegionAt(at, planes.value.main + token * Value::kRowBytes + Value::Offset(g));
  const std::byte* scales = RegionAt(at, planes.value.scales + token * (2 * Value::kGroups) + 2 * Value::GroupOf(g));
#pragma unroll
  for (int i = 0; i < 4; ++i) LoadWords(codes->value[i], main + i * Value::kRowBytes);
  if constexpr (Value::kGrouped) {
    uint32_t scale[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) scale[i] = LoadHalfWord(scales + i * 2 * Value::kGroups);
    codes->value_scales[0] = scale[0] | scale[1] << 16;
    codes->value_scales[1] = scale[2] | scale[3] << 16;
  } else {
    LoadWords(codes->value_scales, scales);
  }
  if (at.t0 >= low && at.t0 + kRunTokens <= high) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = at.t0 + 4 * quad + i;
    if (t >= low && t < high) continue;
#pragma unroll
    for (uint32_t& word : codes->value[i]) word = 0;
    codes->value_scales[i / 2] &= i % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
  }
}

// --- arithmetic ---

template <typename F>
struct CodeState {
  float o[F::Value::kTiles][4];  // in units of the largest scale's power of two over kValueBoost
  float m[2];                    // of scores before their row's factor
  float l[2];                    // this thread's part
  uint32_t exponent;             // of the largest scale, in BF16's place

  __device__ void Clear() {
#pragma unroll
    for (auto& tile : o) {
#pragma unroll
      for (float& value : tile) value = 0;
    }
    m[0] = m[1] = -CUDART_INF_F;
    l[0] = l[1] = 0;
    exponent = kLeastExponent;
  }
  // Sums as they are, maxima in units of log2: what is merged.
  __device__ void Finish(const float (&factor)[2]) {
    const float unit = __uint_as_float(exponent << 16) / kValueBoost;
#pragma unroll
    for (auto& tile : o) {
#pragma unroll
      for (float& value : tile) value *= unit;
    }
    m[0] *= factor[0];
    m[1] *= factor[1];
  }
};

// Row g (r = 0) or g + 8 of the sums to `to` [dim].
template <typename F>
__device__ __forceinline__ void StoreSums(const CodeState<F>& state, int r, int quad, float* to) {
#pragma unroll
  for (int e = 0; e < 2; ++e) {
#pragma unroll
    for (int j = 0; j < F::Value::kTiles; j += 4) {
      *reinterpret_cast<float4*>(to + F::Value::ColumnOf(2 * quad + e, j)) = {state.o[j][2 * r + e], state.o[j + 1][2 * r + e],
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

// Softmax of the run's scores and its values. `whole`: every row sees every token.
template <typename F>
__device__ __forceinline__ void TakeRun(const RunCodes<F>& codes, float (&s)[2][4], int t0, bool whole, const Visible& visible,
                                        const float (&factor)[2], CodeState<F>* state) {
  using Value = typename F::Value;
  const int quad = static_cast<int>(threadIdx.x) % 4;
  if (!whole) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int t = t0 + 4 * quad + 2 * tile + c % 2;
        if (t < visible.begin[c / 2] || t >= visible.end[c / 2]) s[tile][c] = -CUDART_INF_F;
      }
    }
  }
  float rescale[2];
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
  const uint32_t pair = __vmaxu2(codes.value_scales[0], codes.value_scales[1]);
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
  }
  const float inverse = __uint_as_float((254u << 23) - (state->exponent << 16)) * kValueBoost;
  float value_scale[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) value_scale[i] = ScaleOf(codes.value_scales[i / 2], i % 2 != 0) * inverse;
  uint32_t weights[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int tile = i / 2, c = i % 2 * 2;  // row g + 8 (i % 2), tokens 2 tile and 2 tile + 1
    if constexpr (Value::kGrouped) {
      weights[i] = Pack2(s[tile][c], s[tile][c + 1], __half{});
    } else {
      weights[i] = Pack2(s[tile][c] * value_scale[2 * tile], s[tile][c + 1] * value_scale[2 * tile + 1], __half{});
    }
  }
  if constexpr (Value::kGrouped) {
    constexpr uint32_t kOffset = 0x54785478u;  // 71.5
    const uint32_t scale0 = Pack2(value_scale[0], value_scale[1], __half{}), scale1 = Pack2(value_scale[2], value_scale[3], __half{});
#pragma unroll
    for (int w = 0; w < Value::kWords; ++w) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t b0 = SubAndScale2(Value::HalfPair(codes.value[0][w], codes.value[1][w], i), kOffset, scale0);
        const uint32_t b1 = SubAndScale2(Value::HalfPair(codes.value[2][w], codes.value[3][w], i), kOffset, scale1);
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

// Every step-th run of a tile and head from `first` on, of `count` in all: loads two ahead. The tokens in [low, high) have been written.
template <typename F>
class RunReader {
 public:
  __device__ __forceinline__ RunReader(const PagedKv& kv, const CodePlanes& planes, int slot, int kv_head, int first, int step, int count, int low,
                                       int high)
      : planes_(planes),
        data_(kv.data + kv_head * planes.head_bytes),
        table_(kv.block_tables + slot * kv.table_stride),
        block_bytes_(kv.block_bytes),
        block_tokens_(kv.block_tokens),
        first_(first),
        step_(step),
        count_(count),
        low_(low),
        high_(high) {
    if (count <= 0) return;
    FetchTable(0, &block_, &row_);
    FetchTable(32, &next_block_, &next_row_);
  }
  __device__ __forceinline__ int count() const { return count_; }
  // The first two.
  __device__ __forceinline__ void Start() {
    if (count_ > 0) Load(0, &a_);
    if (count_ > 1) Load(1, &b_);
  }
  // Runs that lie in [whole_low, whole_high) are seen by all rows.
  __device__ __forceinline__ void Attend(const CodeQueries<F>& q, const Visible& visible, int whole_low, int whole_high, CodeState<F>* state) {
    for (int i = 0; i < count_; i += 2) {
      Take(i, q, visible, whole_low, whole_high, &a_, state);
      if (i + 1 < count_) Take(i + 1, q, visible, whole_low, whole_high, &b_, state);
    }
  }

 private:
  __device__ __forceinline__ void FetchTable(int from, int* block, int* row) const {
    const int t = (first_ + min(from + static_cast<int>(threadIdx.x) % 32, count_ - 1) * step_) * kRunTokens;
    *block = table_[t / block_tokens_];
    *row = t % block_tokens_;
  }
  // For 0, 1, 2 ... in turn.
  __device__ __forceinline__ RunPlace At(int i) {
    if (i - base_ == 32) {
      base_ += 32;
      block_ = next_block_;
      row_ = next_row_;
      FetchTable(base_ + 32, &next_block_, &next_row_);
    }
    const int64_t block = __shfl_sync(kAllLanes, block_, i - base_);
    return {data_ + block * block_bytes_, __shfl_sync(kAllLanes, row_, i - base_), (first_ + i * step_) * kRunTokens};
  }
  __device__ __forceinline__ void Load(int i, RunCodes<F>* codes) {
    const RunPlace at = At(i);
    LoadKeys<F>(planes_, at, codes);
    LoadValues<F>(planes_, at, low_, high_, codes);
  }
  __device__ __forceinline__ void Take(int i, const CodeQueries<F>& q, const Visible& visible, int whole_low, int whole_high, RunCodes<F>* codes,
                                       CodeState<F>* state) {
    float s[2][4];
    Scores<F>(*codes, q, s);
    const int t0 = (first_ + i * step_) * kRunTokens;
    const bool more = i + 2 < count_;
    RunPlace next = {nullptr, 0, 0};
    if (more) {
      next = At(i + 2);
      LoadKeys<F>(planes_, next, codes);
    }
    TakeRun<F>(*codes, s, t0, t0 >= whole_low && t0 + kRunTokens <= whole_high, visible, q.factor, state);
    if (more) LoadValues<F>(planes_, next, low_, high_, codes);
  }

  const CodePlanes& planes_;
  const std::byte* data_;
  const int32_t* table_;
  int64_t block_bytes_;
  int block_tokens_, first_, step_, count_, low_, high_;
  int base_ = 0, block_ = 0, row_ = 0, next_block_ = 0, next_row_ = 0;
  RunCodes<F> a_, b_;
};

}  // namespace cachalot
