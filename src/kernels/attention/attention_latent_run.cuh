// A part of 16 latents in codes (latent_run.h) on its way from the cache through a slot in shared memory, as keys and as values; and the
// queries it meets.
#pragma once

#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_codes_run.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/latent_run.h"
#include "kernels/attention/latent_tile.h"
#include "quant/kv_rotate.h"

namespace cachalot {

template <KvCode kCode>
inline constexpr bool kIntegerLatents = kCode != KvCode::kE4M3;
// Steps of mma over a part's columns.
template <KvCode kCode>
inline constexpr int kLatentSteps = kIntegerLatents<kCode> ? LatentKeys<kCode>::kSteps : kLatentColumns / 16;

// Sixteen rows in shared memory, as operands A (QueryWord).
template <KvCode kCode>
struct SharedLatentQueries {
  uint4 words[kLatentParts][kLatentSteps<kCode> * 32];
  uint4 exact[kLatentParts][2][32];                                     // BF16 and its rest, in units of the row's scores
  int32_t starts[kCodeRows][kLatentParts][LatentKeys<kCode>::kGroups];  // minus the bias times the sum of the query's codes
  float factors[kCodeRows];                                             // of scores, in units of log2
};

// A row of them by a warp: `row` may not exist.
template <KvCode kCode>
__device__ __forceinline__ void StoreLatentRow(const AttentionParams& p, const CodePlanes& planes, const TileRow& row, int r, bool aligned,
                                               SharedLatentQueries<kCode>* shared) {
  using Keys = LatentKeys<kCode>;
  constexpr int kValues = kLatentDim / 32;  // of a lane, side by side
  const int lane = static_cast<int>(threadIdx.x) % 32, part = lane / 8;
  float x[kValues], tail[2] = {0, 0};
#pragma unroll
  for (float& value : x) value = 0;
  if (row.position >= 0) {
    const float* from = p.q + row.row * p.q_token_stride + row.head * p.q_head_stride;
#pragma unroll
    for (int i = 0; i < kValues; i += 4) {
      if (aligned) {
        const float4 four = *reinterpret_cast<const float4*>(from + lane * kValues + i);
        x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) x[i + c] = from[lane * kValues + i + c];
      }
    }
    tail[0] = from[kLatentDim + lane * 2], tail[1] = from[kLatentDim + lane * 2 + 1];
  }
  if (planes.rotation > 1) {  // 128: eight lanes
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
    for (int mask = 1; mask < kMaxKvRotation / kValues; mask *= 2) {
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
  const auto rotation = static_cast<float>(planes.rotation);
  tail[0] *= rotation, tail[1] *= rotation;
  const float tail_largest = MaxOrNan(fabsf(tail[0]), fabsf(tail[1]));
  const bool finite = __all_sync(kAllLanes, MaxOrNan(largest, tail_largest) <= FLT_MAX);
  // The exact part is in the same units: next to it, what it makes too large for them is nothing.
  const float least = WarpMax(finite ? tail_largest : 0.0f) * 0x1p-60f;
  float unit;  // of the query as it is multiplied
  if constexpr (kIntegerLatents<kCode>) {
    const CodedQueryScale scale = QueryScaleOfWarp(finite ? largest : 0.0f);
    const bool own = scale.scale >= least && scale.scale > 0;
    unit = own ? scale.scale : least >= kKvSmallest ? least : 1.0f;
    int sum = 0, sums[kValues / 4];
#pragma unroll
    for (int i = 0; i < kValues; i += 4) {
      uint32_t word = 0;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int code = own && finite ? static_cast<int>(rintf(__fmul_rn(x[i + c], scale.inverse))) : 0;
        word |= (static_cast<uint32_t>(code) & 0xffu) << (8 * c);
        sum += code;
      }
      sums[i / 4] = sum;
      using Head = typename Keys::Head;
      const int column = lane % 8 * kValues + i, head = column / Keys::kHeadDim, value = column % Keys::kHeadDim;
      auto* to = reinterpret_cast<uint32_t*>(shared->words[part]);
      to[QueryWord(r, Head::QuadOf(value), head * Head::kSteps + Head::StepOf(value), Head::HalfOf(value))] = word;
    }
    constexpr int kLanes = 8 / Keys::kGroups;  // of a group
    int total = sums[kValues / 4 - 1];
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) total += __shfl_xor_sync(kAllLanes, total, offset);
    if (lane % kLanes == 0) shared->starts[r][part][lane % 8 / kLanes] = -Keys::Head::kBias * total;
    unit *= Keys::Head::kStep;
  } else {
    const float most = fmaxf(WarpMax(finite ? largest : 0.0f), least);
    const uint32_t exponent = min(max(__float_as_uint(most) >> 23, 1u), 253u);
    const float inverse = __uint_as_float((254 - exponent) << 23);
    unit = __uint_as_float(exponent << 23);
#pragma unroll
    for (int i = 0; i < kValues; i += 2) {
      const float a = finite ? x[i] * inverse : 0.0f, b = finite ? x[i + 1] * inverse : 0.0f;
      const int value = lane % 8 * kValues + i, of_quad = kLatentColumns / 4;
      reinterpret_cast<uint32_t*>(shared->words[part])[QueryWord(r, value / of_quad, value % of_quad / 4, value % 4 / 2)] = Pack2(a, b, __half{});
    }
  }
  const float a = finite ? __fdiv_rn(tail[0], unit) : 0.0f, b = finite ? __fdiv_rn(tail[1], unit) : 0.0f;
  const uint32_t high = Pack2(a, b, __nv_bfloat16{});
  const int at = QueryWord(r, lane % 8 / 2, 0, lane % 2);
  reinterpret_cast<uint32_t*>(shared->exact[part][0])[at] = high;
  reinterpret_cast<uint32_t*>(shared->exact[part][1])[at] = PackRest2(a, b, high, __nv_bfloat16{});
  if (lane == 0) shared->factors[r] = finite ? unit * (p.scale / rotation * kLog2E) : CUDART_NAN_F;
}

// A part's as operands A.
template <KvCode kCode>
struct LatentQueries {
  uint32_t words[kLatentSteps<kCode>][4];
  uint32_t exact;                             // where they are in shared memory: they are read anew for each run, registers are short
  int starts[2][LatentKeys<kCode>::kGroups];  // of integer keys
  float factor[2];
};

template <KvCode kCode>
__device__ __forceinline__ void LoadLatentQueries(const SharedLatentQueries<kCode>& shared, int part, LatentQueries<kCode>* q) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 0; step < kLatentSteps<kCode>; ++step) {
    const uint4 four = shared.words[part][step * 32 + lane];
    q->words[step][0] = four.x, q->words[step][1] = four.y, q->words[step][2] = four.z, q->words[step][3] = four.w;
  }
  q->exact = SharedAddress(&shared.exact[part][0][lane]);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = lane / 4 + 8 * r;
    q->factor[r] = shared.factors[row];
    if constexpr (kIntegerLatents<kCode>) {
#pragma unroll
      for (int group = 0; group < LatentKeys<kCode>::kGroups; ++group) q->starts[r][group] = shared.starts[row][part][group];
    }
  }
}

// Rows of a run, `pitch` bytes apart in the cache.
template <typename Plane>
__device__ __forceinline__ void CopyRows(const std::byte* from, int pitch, uint32_t to) {
  const int lane = static_cast<int>(threadIdx.x) % 32, first = Plane::FirstCopy(lane);
  constexpr int kPiecesOfRow = Plane::kRowBytes / kPieceBytes;
  static_assert(Plane::kPieces % 32 == 0);
  from += lane / kPiecesOfRow * pitch + lane % kPiecesOfRow * kPieceBytes;
#pragma unroll
  for (int copy = 0; copy < Plane::kCopies; ++copy) {
    CopyPiece(to + static_cast<uint32_t>(Plane::Copy(first, copy)), from + copy * (32 / kPiecesOfRow) * pitch);
  }
}

template <KvCode kCode>
__device__ __forceinline__ void CopyLatents(const CodePlanes& planes, const RunPlace& at, int part, uint32_t slot) {
  using Slot = LatentSlot<kCode>;
  using Values = LatentValues<kCode>;
  constexpr int kMainPitch = kLatentParts * Values::kRowBytes, kHighPitch = kLatentParts * Values::kHighRowBytes;
  constexpr int kExactPitch = 2 * kExactDim;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  CopyRows<typename Slot::Main>(RegionAt(at, planes.key.main + at.row * kMainPitch + part * Values::kRowBytes), kMainPitch, slot);
  if constexpr (Values::kHighWords > 0) {
    CopyRows<typename Slot::High>(RegionAt(at, planes.key.high + at.row * kHighPitch + part * Values::kHighRowBytes), kHighPitch, slot + Slot::kHigh);
  }
  CopyRows<typename Slot::Exact>(RegionAt(at, planes.exact + at.row * kExactPitch + part * (2 * kExactOfPart)), kExactPitch, slot + Slot::kExact);
  if (lane < Slot::kScalePieces) {
    CopyPiece(slot + static_cast<uint32_t>(Slot::kScales + lane * kPieceBytes),
              RegionAt(at, planes.key.scales + at.row * Slot::kScaleRow) + lane * kPieceBytes);
  }
}

template <KvCode kCode>
struct LatentKeyCodes {
  using Keys = LatentKeys<kCode>;
  using Head = typename Keys::Head;
  uint32_t main[2][Keys::kHeads][Head::kWords];
  uint32_t high[2][Keys::kHeads][Head::kHighWords == 0 ? 1 : Head::kHighWords];
  uint32_t exact[2][2];
  uint32_t scales[4][Keys::kGroups == 4 ? 2 : 1];  // of this lane's four tokens
};

// Also of tokens that nobody sees: those scores are never used.
template <KvCode kCode>
__device__ __forceinline__ void ReadLatentKeys(uint32_t slot, int part, LatentKeyCodes<kCode>* codes) {
  using Slot = LatentSlot<kCode>;
  using Keys = LatentKeys<kCode>;
  using Head = typename Keys::Head;
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4, token = TokenOf(0, lane / 4);
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int head = 0; head < Keys::kHeads; ++head) {
      constexpr int kAtOnce = Head::kGrouped ? 1 : Head::kWords < 4 ? Head::kWords : 4;
#pragma unroll
      for (int w = 0; w < Head::kWords; w += kAtOnce) {
        uint32_t words[kAtOnce];
        const int at = Slot::Main::At(token, head * Head::kRowBytes + Head::MainOffset(quad, w)) + tile * 2 * Slot::Main::kRowBytes;
        LoadShared(words, slot + static_cast<uint32_t>(at));
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) codes->main[tile][head][w + i] = words[i];
      }
      if constexpr (Head::kHighWords > 0) {
        const int at = Slot::High::At(token, head * Head::kHighRowBytes + Head::HighOffset(quad, 0)) + tile * 2 * Slot::High::kRowBytes;
        LoadShared(codes->high[tile][head], slot + Slot::kHigh + static_cast<uint32_t>(at));
      }
    }
    LoadShared(codes->exact[tile], slot + Slot::kExact + static_cast<uint32_t>(Slot::Exact::At(token, quad * 8) + tile * 2 * Slot::Exact::kRowBytes));
  }
  const uint32_t scales = slot + Slot::kScales + static_cast<uint32_t>(4 * quad * Slot::kScaleRow + part * (2 * Keys::kGroups));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (Keys::kGroups == 1) {
      codes->scales[i][0] = LoadSharedHalfWord(scales + i * Slot::kScaleRow);
    } else {
      LoadShared(codes->scales[i], scales + i * Slot::kScaleRow);
    }
  }
}

// s[tile][c]: rows g (c < 2) and g + 8, this lane's token 2 tile + c % 2, over the part's columns; without the row's factor.
template <KvCode kCode>
__device__ __forceinline__ void LatentScores(const LatentKeyCodes<kCode>& codes, const LatentQueries<kCode>& q, float (&s)[2][4]) {
  using Keys = LatentKeys<kCode>;
  using Head = typename Keys::Head;
  const int quad = static_cast<int>(threadIdx.x) % 4;
  uint32_t exact[2][4];
#pragma unroll
  for (int rest = 0; rest < 2; ++rest) LoadShared(exact[rest], q.exact + rest * 512);
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const auto scale = [&](int c, int group) { return ScaleOf(codes.scales[2 * tile + c % 2][group / 2], group % 2 != 0); };
#pragma unroll
    for (float& score : s[tile]) score = 0;
#pragma unroll
    for (int rest = 1; rest >= 0; --rest) Mma(s[tile], exact[rest], codes.exact[tile][0], codes.exact[tile][1], __nv_bfloat16{});
    if constexpr (!kIntegerLatents<kCode>) {
      float sum[4] = {0, 0, 0, 0};
#pragma unroll
      for (int w = 0; w < Head::kWords; ++w) {
        const uint32_t b0 = HalvesOfE4M3(codes.main[tile][0][w], false), b1 = HalvesOfE4M3(codes.main[tile][0][w], true);
        Mma(sum, q.words[w], b0, b1, __half{});
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) s[tile][c] = __fmaf_rn(sum[c], scale(c, 0), s[tile][c]);
    } else {
      constexpr int kStepsOfGroup = Keys::kSteps / Keys::kGroups;
#pragma unroll
      for (int group = 0; group < Keys::kGroups; ++group) {
        int sum[4] = {q.starts[0][group], q.starts[0][group], q.starts[1][group], q.starts[1][group]};
#pragma unroll
        for (int i = 0; i < kStepsOfGroup; ++i) {
          const int step = group * kStepsOfGroup + i, head = step / Head::kSteps;
          MmaBytes<Head::kSigned>(sum, q.words[step], Head::Take(codes.main[tile][head], codes.high[tile][head], quad, step % Head::kSteps));
        }
#pragma unroll
        for (int c = 0; c < 4; ++c) s[tile][c] = __fmaf_rn(__int2float_rn(sum[c]), scale(c, group), s[tile][c]);
      }
    }
  }
}

template <KvCode kCode>
struct LatentValueCodes {
  using Values = LatentValues<kCode>;
  uint32_t main[4][Values::kWords];
  uint32_t high[4][Values::kHighWords == 0 ? 1 : Values::kHighWords];
  uint32_t scales[Values::kSets][2];

  // What WeighRun asks for.
  __device__ __forceinline__ void Largest(uint32_t (&to)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) to[i] = Values::kSets == 1 ? scales[0][i] : __vmaxu2(scales[0][i], scales[Values::kSets - 1][i]);
  }
};

// Zeros for tokens outside [low, high): a weight of zero must not meet what is no number.
template <KvCode kCode>
__device__ __forceinline__ void ReadLatentValues(uint32_t slot, int part, int t0, int low, int high, LatentValueCodes<kCode>* codes) {
  using Slot = LatentSlot<kCode>;
  using Values = LatentValues<kCode>;
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, quad = lane % 4;
  constexpr int kAtOnce = Values::kSplit ? 1 : Values::kWords;
  // Rows of four tokens lie at constant distances, and so do the words of one; in every other row pieces may have changed places.
  const uint32_t even = slot + static_cast<uint32_t>(Slot::Main::At(4 * quad, Values::Offset(g, 0)));
  const uint32_t odd = slot + static_cast<uint32_t>(Slot::Main::At(4 * quad + 1, Values::Offset(g, 0))) - Slot::Main::kRowBytes;
  const uint32_t top = slot + Slot::kHigh + static_cast<uint32_t>(Slot::High::At(4 * quad, Values::HighOffset(g, 0)));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int w = 0; w < Values::kWords; w += kAtOnce) {
      uint32_t words[kAtOnce];
      LoadShared(words, (i % 2 == 0 || !Values::kBytes ? even : odd) + i * Slot::Main::kRowBytes + (Values::Offset(0, w) - Values::Offset(0, 0)));
#pragma unroll
      for (int of = 0; of < kAtOnce; ++of) codes->main[i][w + of] = words[of];
    }
#pragma unroll
    for (int w = 0; w < Values::kHighWords; ++w) {
      uint32_t word[1];
      LoadShared(word, top + i * Slot::High::kRowBytes + Values::HighOffset(0, w));
      codes->high[i][w] = word[0];
    }
  }
#pragma unroll
  for (int set = 0; set < Values::kSets; ++set) {
    const int group = part * Values::kGroups + Values::GroupOf(g, set);
    const uint32_t scales = slot + Slot::kScales + static_cast<uint32_t>(4 * quad * Slot::kScaleRow + 2 * group);
    uint32_t scale[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) scale[i] = LoadSharedHalfWord(scales + i * Slot::kScaleRow);
    codes->scales[set][0] = scale[0] | scale[1] << 16;
    codes->scales[set][1] = scale[2] | scale[3] << 16;
  }
  if (t0 >= low && t0 + kRunTokens <= high) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int t = t0 + 4 * quad + i;
    if (t >= low && t < high) continue;
#pragma unroll
    for (uint32_t& word : codes->main[i]) word = 0;
#pragma unroll
    for (auto& set : codes->scales) set[i / 2] &= i % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
  }
}

// `s`: the run's weights in F32, as WeighRun leaves them.
template <KvCode kCode>
__device__ __forceinline__ void AddLatents(const LatentValueCodes<kCode>& codes, const float (&s)[2][4], const uint32_t (&weights)[4],
                                           const float (&value_scale)[4], CodeState<LatentValues<kCode>>* state) {
  using Values = LatentValues<kCode>;
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  if constexpr (kCode == KvCode::kE4M3) {
    using Bytes = ValueFragments<KvCode::kE4M3, kLatentColumns>;
#pragma unroll
    for (int w = 0; w < Values::kWords; ++w) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const uint32_t pair0 = Bytes::BytePairs(codes.main[0][w], codes.main[1][w], upper);
        const uint32_t pair1 = Bytes::BytePairs(codes.main[2][w], codes.main[3][w], upper);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          Mma(state->o[Values::TileOf(w, 2 * upper + i)], weights, HalvesOfE4M3(pair0, i != 0), HalvesOfE4M3(pair1, i != 0), __half{});
        }
      }
    }
  } else if constexpr (Values::kSplit) {
    const float inverse = __uint_as_float((254u << 23) - (state->exponent << 16)) * kValueBoost<Values>;
#pragma unroll
    for (int set = 0; set < 2; ++set) {
      float scale[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) scale[i] = ScaleOf(codes.scales[set][i / 2], i % 2 != 0) * inverse;
      uint32_t mine[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int tile = i / 2, c = i % 2 * 2;
        mine[i] = Pack2(s[tile][c] * scale[2 * tile], s[tile][c + 1] * scale[2 * tile + 1], __half{});
      }
      // Their sums: of the first set in even columns, of the second in odd ones.
      const uint32_t ones = g % 2 == set ? 0x3c003c00u : 0;
      Mma(state->offset, mine, ones, ones, __half{});
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        uint32_t bytes[4];
#pragma unroll
        for (int token = 0; token < 4; ++token) bytes[token] = Values::Bytes(codes.main[token][set], codes.high[token][set], g, upper != 0);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          Mma(state->o[Values::TileOf(set, 4 * upper + i)], mine, WidenBytes(bytes[0], bytes[1], i), WidenBytes(bytes[2], bytes[3], i), __half{});
        }
      }
    }
  } else if constexpr (!Values::kGrouped) {
    constexpr uint32_t kOnes = 0x3c003c00u;
    Mma(state->offset, weights, kOnes, kOnes, __half{});
#pragma unroll
    for (int w = 0; w < Values::kWords; ++w) {
#pragma unroll
      for (int i = 0; i < Values::kPairs; ++i) {
        Mma(state->o[Values::TileOf(w, i)], weights, Values::HalfPair(codes.main[0][w], codes.main[1][w], i),
            Values::HalfPair(codes.main[2][w], codes.main[3][w], i), __half{});
      }
    }
  } else {
    // As AddValues does.
    const uint32_t low0 = Pack2(value_scale[0], value_scale[1], __half{}), low1 = Pack2(value_scale[2], value_scale[3], __half{});
    const uint32_t high0 = Scale2(low0, kSixteenth), high1 = Scale2(low1, kSixteenth);
    const uint32_t start0 = Scale2(low0, kMinusEight), start1 = Scale2(low1, kMinusEight);
    Mma(state->offset, weights, low0, low1, __half{});
#pragma unroll
    for (int w = 0; w < Values::kWords; ++w) {
#pragma unroll
      for (int i = 0; i < Values::kPairs; ++i) {
        const bool upper = Values::IsHigh(i);
        const uint32_t b0 = ScaleAndAdd2(Values::HalfPair(codes.main[0][w], codes.main[1][w], i), upper ? high0 : low0, start0);
        const uint32_t b1 = ScaleAndAdd2(Values::HalfPair(codes.main[2][w], codes.main[3][w], i), upper ? high1 : low1, start1);
        Mma(state->o[Values::TileOf(w, i)], weights, b0, b1, __half{});
      }
    }
  }
}

}  // namespace cachalot
