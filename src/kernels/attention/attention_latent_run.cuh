// A part of 16 latents in codes (latent_run.h) on its way from the cache through a slot in shared memory, as keys and as values.
#pragma once

#include "kernels/attention/attention_latent_queries.cuh"

namespace cachalot {

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
