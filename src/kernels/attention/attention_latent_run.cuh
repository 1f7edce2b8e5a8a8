// A run of 16 latents in codes (latent_run.h) on its way from the cache to shared memory, as keys and as values.
#pragma once

#include "kernels/attention/attention_codes_slot.cuh"
#include "kernels/attention/attention_latent_queries.cuh"
#include "kernels/attention/attention_run.cuh"

namespace cachalot {

inline constexpr uint32_t kLeastScale = 16 << 7;  // a scale's exponent, in BF16's place; below those of scales that are not 0
inline constexpr float kLatentBoost = 64.0f;      // largest factor of a weight, but for a factor of two (LatentSlot::kFactors)

__device__ __forceinline__ void StoreSharedFour(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ void StoreSharedTwo(uint32_t to, uint32_t a, uint32_t b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};\n" ::"r"(to), "r"(a), "r"(b) : "memory");
}

// --- from the cache ---

// Rows of a plane by a warp, kRowsAtOnce at a time; place(row, byte) is linear in XOR, apart from the rows' distance kPitch. Zeros for rows
// outside [first, end), unless kAll.
template <bool kAll, int kRow, int kPitch, typename Place>
__device__ __forceinline__ void CopyRows(const std::byte* from, uint32_t slot, int first, int end, Place place) {
  constexpr int kPieces = kRow / kPieceBytes, kRowsAtOnce = 32 / kPieces;
  const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / kPieces, byte = lane % kPieces * kPieceBytes;
  from += lane * kPieceBytes;
  const int mine = place(row, byte);
#pragma unroll
  for (int i = 0; i < kRunTokens / kRowsAtOnce; ++i) {
    const int further = place(i * kRowsAtOnce, 0) - place(0, 0), turned = further % kPitch;
    const uint32_t to = slot + static_cast<uint32_t>((mine ^ turned) + further - turned);
    if constexpr (kAll) {
      CopyPiece(to, from + i * kRowsAtOnce * kRow);
    } else {
      CopyAsync16(to, from + i * kRowsAtOnce * kRow, row + i * kRowsAtOnce >= first && row + i * kRowsAtOnce < end);
    }
  }
}

// Tokens outside [low, high) become zeros; kAll: there are none.
template <KvCode kCode, bool kAll>
__device__ __forceinline__ void CopyLatents(const CodePlanes& planes, const RunPlace& at, int low, int high, uint32_t slot) {
  using Slot = LatentSlot<kCode>;
  const int lane = static_cast<int>(threadIdx.x) % 32, first = low - at.t0, end = high - at.t0;
  CopyRows<kAll, Slot::kMainRow, kLatentRow>(RegionAt(at, planes.key.main + at.row * Slot::kMainRow), slot, first, end,
                                             [](int token, int byte) { return Slot::Main(token, byte); });
  if constexpr (Slot::kHighRow > 0) {
    CopyRows<kAll, Slot::kHighRow, kLatentRow>(RegionAt(at, planes.key.high + at.row * Slot::kHighRow), slot, first, end,
                                               [](int token, int byte) { return Slot::High(token, byte); });
  }
  CopyRows<kAll, kExactRow, kExactRow>(RegionAt(at, planes.exact + at.row * kExactRow), slot, first, end,
                                       [](int token, int byte) { return Slot::Exact(token, byte); });
  constexpr int kScalePieces = kRunTokens * Slot::kScaleRow / kPieceBytes;
  static_assert(kScalePieces <= 32);
  if (lane < kScalePieces) {
    // With eight bytes a token two share a piece: LatentFactors leaves out what is not to be seen.
    const int token = lane * kPieceBytes / Slot::kScaleRow, last = (lane * kPieceBytes + kPieceBytes - 1) / Slot::kScaleRow;
    CopyAsync16(slot + static_cast<uint32_t>(Slot::kScales + lane * kPieceBytes),
                RegionAt(at, planes.key.scales + at.row * Slot::kScaleRow) + lane * kPieceBytes, kAll || (last >= first && token < end));
  }
}

// --- as keys ---

template <KvCode kCode>
struct LatentKeyCodes {
  using Keys = LatentKeys<kCode>;
  using Head = typename Keys::Head;
  uint32_t main[Keys::kHeads][Head::kWords];
  uint32_t high[Keys::kHeads][Head::kHighWords == 0 ? 1 : Head::kHighWords];
};

// Where a scoring lane finds its things of a slot: of its token of the first tile, and of its quad's four tokens.
template <KvCode kCode>
struct ScoringPlaces {
  using Slot = LatentSlot<kCode>;
  using Head = typename LatentKeys<kCode>::Head;
  uint32_t main, high, exact, bytes, own_scales, scales, group_scales, factors, weights;

  __device__ __forceinline__ explicit ScoringPlaces(int lane) {
    const int g = lane / 4, quad = lane % 4, token = TokenOf(0, g);
    constexpr int kMine = Slot::kGroups > 8 ? Slot::kGroups / 8 : 1, kSharers = Slot::kGroups / kMine;
    main = static_cast<uint32_t>(Slot::Main(token, Head::MainOffset(quad, 0)));
    high = static_cast<uint32_t>(Slot::High(token, Head::kHighWords == 0 ? 0 : Head::HighOffset(quad, 0)));
    exact = static_cast<uint32_t>(Slot::Exact(token, 2 * Slot::ExactValueOf(quad, 0)));
    bytes = static_cast<uint32_t>(Slot::Bytes(token, 0, quad * 2));
    own_scales = static_cast<uint32_t>(Slot::kScales + token * Slot::kScaleRow + quad * 4);
    scales = static_cast<uint32_t>(Slot::kScales + 4 * quad * Slot::kScaleRow);
    group_scales = scales + static_cast<uint32_t>(g % kSharers * (2 * kMine));
    factors = static_cast<uint32_t>(Slot::kFactors + g * kMine * (2 * kRunTokens) + quad * 8);
    weights = static_cast<uint32_t>(Slot::kWeights + lane * kPieceBytes);
  }
};

// A part of tile `tile`'s tokens.
template <KvCode kCode>
__device__ __forceinline__ void ReadLatentKeys(uint32_t main, uint32_t high, int part, int tile, LatentKeyCodes<kCode>* codes) {
  using Slot = LatentSlot<kCode>;
  using Keys = LatentKeys<kCode>;
  using Head = typename Keys::Head;
  constexpr int kAtOnce = Head::kGrouped ? 1 : Head::kWords < 4 ? Head::kWords : 4;
  const auto further = static_cast<uint32_t>(tile * Slot::kTileApart * kLatentRow);
#pragma unroll
  for (int head = 0; head < Keys::kHeads; ++head) {
    const int of = part * Keys::kHeads + head;
#pragma unroll
    for (int w = 0; w < Head::kWords; w += kAtOnce) {
      uint32_t words[kAtOnce];
      LoadShared(words, Slot::Further(main, of * Head::kRowBytes + Head::MainOffset(0, w)) + further);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) codes->main[head][w + i] = words[i];
    }
    if constexpr (Head::kHighWords > 0) LoadShared(codes->high[head], Slot::Further(high, of * Head::kHighRowBytes) + further);
  }
}

// Adds a part's scores of a tile: s[c] of rows g (c < 2) and g + 8, this lane's tokens c % 2, without the row's factor. Codes that are taken
// apart go to `bytes` on, where values are read. `scales`: of the two tokens.
template <KvCode kCode, int kScaleWords>
__device__ __forceinline__ void AddPartScores(const LatentKeyCodes<kCode>& codes, const LatentQueries<kCode>& q, const SharedLatentQueries<kCode>& shared,
                                              const uint32_t (&scales)[2][kScaleWords], int lane, int part, uint32_t bytes, float (&s)[4]) {
  using Keys = LatentKeys<kCode>;
  using Head = typename Keys::Head;
  const int quad = lane % 4;
  const auto scale = [&](int c, int group) {
    const int of = part * Keys::kGroups + group;
    return ScaleOf(scales[c % 2][of / 2], of % 2 != 0);
  };
  if constexpr (!kIntegerLatents<kCode>) {
    float sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int w = 0; w < Head::kWords; ++w) {
      const uint4 four = shared.words[part][w * 32 + lane];
      const uint32_t a[4] = {four.x, four.y, four.z, four.w};
      Mma(sum, a, HalvesOfE4M3(codes.main[0][w], false), HalvesOfE4M3(codes.main[0][w], true), __half{});
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) s[c] = __fmaf_rn(sum[c], scale(c, 0), s[c]);
  } else {
    constexpr int kStepsOfGroup = Keys::kSteps / Keys::kGroups;
    uint32_t pieces[2][4];
#pragma unroll
    for (int group = 0; group < Keys::kGroups; ++group) {
      int sum[4] = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < kStepsOfGroup; ++i) {
        const int step = group * kStepsOfGroup + i, head = step / Head::kSteps;
        const OperandB b = Keys::Take(codes.main[head], codes.high[head], quad, step % Head::kSteps);
        MmaBytes<Head::kSigned>(sum, q.words[part][step], b);
        if constexpr (Keys::kTaken) {
          pieces[Keys::PieceOf(0, step, 0)][Keys::WordOf(step, 0)] = b.low;
          pieces[Keys::PieceOf(0, step, 1)][Keys::WordOf(step, 1)] = b.high;
        }
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) s[c] = __fmaf_rn(__int2float_rn(sum[c]), scale(c, group), s[c]);
    }
    if constexpr (Keys::kTaken) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        StoreSharedFour(LatentSlot<kCode>::Further(bytes, part * kLatentColumns + i * kPieceBytes), pieces[i][0], pieces[i][1], pieces[i][2], pieces[i][3]);
      }
    }
  }
}

// Scores of a run by a warp; afterwards values may be read as bytes.
template <KvCode kCode>
__device__ __forceinline__ void LatentScores(uint32_t slot, const ScoringPlaces<kCode>& at, int lane, const LatentQueries<kCode>& q,
                                             const SharedLatentQueries<kCode>& shared, float (&s)[2][4]) {
  using Slot = LatentSlot<kCode>;
  using Keys = LatentKeys<kCode>;
  using Queries = LatentQueries<kCode>;
  uint32_t exact[2][2][4];
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      LoadShared(exact[tile][half], Slot::Further(slot + at.exact, half * 64) + static_cast<uint32_t>(tile * Slot::kTileApart * kExactRow));
    }
#pragma unroll
    for (float& score : s[tile]) score = 0;
  }
#pragma unroll
  for (int step = 0; step < kExactDim / 16; ++step) {
#pragma unroll
    for (int rest = 1; rest >= 0; --rest) {
      const uint4 four = shared.exact[step][rest][lane];
      const uint32_t a[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const uint32_t* b = &exact[tile][step / 2][step % 2 * 2];
        Mma(s[tile], a, b[0], b[1], __nv_bfloat16{});
      }
    }
  }
  const uint32_t main = slot + at.main, high = slot + at.high, bytes = slot + at.bytes;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    LatentKeyCodes<kCode> codes[kLatentParts];
#pragma unroll
    for (int part = 0; part < kLatentParts; ++part) ReadLatentKeys<kCode>(main, high, part, tile, &codes[part]);
    uint32_t scales[2][Slot::kGroups / 2];
#pragma unroll
    for (int c = 0; c < 2; ++c) LoadShared(scales[c], slot + at.scales + static_cast<uint32_t>((2 * tile + c) * Slot::kScaleRow));
    if constexpr (Queries::kStarts) {
      uint32_t pairs[Slot::kGroups / 8][1];
#pragma unroll
      for (int eight = 0; eight < Slot::kGroups / 8; ++eight) {
        LoadShared(pairs[eight], slot + at.own_scales + static_cast<uint32_t>(tile * Slot::kTileApart * Slot::kScaleRow + eight * 16));
      }
#pragma unroll
      for (int i = Queries::kStartSteps - 1; i >= 0; --i) Mma(s[tile], q.starts[i], pairs[0][0], pairs[Slot::kGroups / 8 - 1][0], __nv_bfloat16{});
    }
    if constexpr (Keys::kTaken) __syncwarp();  // every lane has this tile's codes: their bytes take their place
    const uint32_t to = bytes + static_cast<uint32_t>(tile * Slot::kTileApart * kLatentRow);
#pragma unroll
    for (int part = 0; part < kLatentParts; ++part) AddPartScores<kCode>(codes[part], q, shared, scales, lane, part, to, s[tile]);
  }
}

// --- as values ---

// Scales of a run's tokens as lane (g, quad) has them: of the quad's four tokens, groups first .. first + kMine - 1.
template <KvCode kCode>
struct LatentFactors {
  using Slot = LatentSlot<kCode>;
  static constexpr int kMine = Slot::kGroups / 8 > 0 ? Slot::kGroups / 8 : 1;
  uint32_t scales[4];  // each kMine of them

  // Largest exponent, in BF16's place, of the run. Tokens outside [low, high) have none. `from`: ScoringPlaces' in the slot.
  __device__ __forceinline__ uint32_t Load(uint32_t from, int t, int low, int high) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kMine == 1) {
        scales[i] = LoadSharedHalfWord(from + i * Slot::kScaleRow);
      } else {
        uint32_t word[1];
        LoadShared(word, from + i * Slot::kScaleRow);
        scales[i] = word[0];
      }
      if (Slot::kScaleRow < kPieceBytes && (t + i < low || t + i >= high)) scales[i] = 0;
      most = __vmaxu2(most, scales[i]);
    }
    return __reduce_max_sync(kAllLanes, max(most >> 16, most & 0xffffu)) & 0x7f80u;
  }
  // As what weights are multiplied by; `exponent`: the unit's.
  __device__ __forceinline__ void Store(uint32_t to, int lane, uint32_t exponent) const {
    if (lane / 4 * kMine >= Slot::kGroups) return;
    const float inverse = __uint_as_float((254u << 23) - (exponent << 16)) * kLatentBoost;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      StoreSharedTwo(to + static_cast<uint32_t>(i * 2 * kRunTokens),
                     Pack2(ScaleOf(scales[0], i != 0) * inverse, ScaleOf(scales[1], i != 0) * inverse, __half{}),
                     Pack2(ScaleOf(scales[2], i != 0) * inverse, ScaleOf(scales[3], i != 0) * inverse, __half{}));
    }
  }
};

// Weighted sums of a part's columns: rows g and g + 8, column 2 quad + e of tile j in o[j][2 r + e].
template <KvCode kCode>
struct LatentSums {
  using Values = LatentValues<kCode>;
  static constexpr int kOffsetSets = Values::kSets == 4 ? 2 : 1;
  float o[Values::kTiles][4];
  float offset[kOffsetSets][4];  // sums of weights: of set 2 i + e in [i][2 r + e]

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (auto& tile : o) {
#pragma unroll
      for (float& value : tile) value = 0;
    }
#pragma unroll
    for (auto& sets : offset) {
#pragma unroll
      for (float& value : sets) value = 0;
    }
  }
  __device__ __forceinline__ void Scale(const float (&by)[2]) {
#pragma unroll
    for (auto& tile : o) {
#pragma unroll
      for (int c = 0; c < 4; ++c) tile[c] *= by[c / 2];
    }
#pragma unroll
    for (auto& sets : offset) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sets[c] *= by[c / 2];
    }
  }
  // Sums of what is stored, times `by`; `exponent`: the unit's.
  __device__ __forceinline__ void Finish(uint32_t exponent, float by) {
    constexpr float kUnit = Values::kOffsets ? 0x1p24f : 1.0f;
    const float unit = __uint_as_float(exponent << 16) * (kUnit / kLatentBoost * LatentKeys<kCode>::Head::kStep) * by;
#pragma unroll
    for (int j = 0; j < Values::kTiles; ++j) {
      const int set = j / Values::kTilesOfSet;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if constexpr (Values::kOffsets) {
          const float sum = offset[set / 2][Values::kSets == 1 ? c : c / 2 * 2 + set % 2];
          o[j][c] = __fmaf_rn(sum, -Values::kOffset * 0x1p-24f, o[j][c]);
        }
        o[j][c] *= unit;
      }
    }
  }
};

// Where an adding lane finds its things of a slot.
template <KvCode kCode>
struct AddingPlaces {
  using Slot = LatentSlot<kCode>;
  uint32_t weights, factors, bytes;
  __device__ __forceinline__ AddingPlaces(int lane, int part)
      : weights(static_cast<uint32_t>(Slot::kWeights + lane * kPieceBytes)),
        factors(static_cast<uint32_t>(Slot::kFactors + part * LatentValues<kCode>::kSets * (2 * kRunTokens) + lane % 4 * 8)),
        bytes(static_cast<uint32_t>(Slot::Bytes(4 * (lane % 4), part, lane / 4))) {}
};

// What it takes from there.
template <KvCode kCode>
struct LatentBytes {
  uint32_t weights[4], words[4][4], factors[LatentValues<kCode>::kSets][2];

  __device__ __forceinline__ void Load(uint32_t slot, const AddingPlaces<kCode>& at) {
    using Slot = LatentSlot<kCode>;
    LoadShared(weights, slot + at.weights);
#pragma unroll
    for (int set = 0; set < LatentValues<kCode>::kSets; ++set) {
      LoadShared(factors[set], slot + at.factors + static_cast<uint32_t>(set * 2 * kRunTokens));
    }
    // The quad's next tokens: only their number's last bit turns rows further.
#pragma unroll
    for (int i = 0; i < 4; ++i) LoadShared(words[i], Slot::Further(slot + at.bytes, i % 2 * kPieceBytes) + static_cast<uint32_t>(i * kLatentRow));
  }
};

template <KvCode kCode>
__device__ __forceinline__ void AddLatents(const LatentBytes<kCode>& bytes, int lane, LatentSums<kCode>* sums) {
  using Values = LatentValues<kCode>;
  const auto& weights = bytes.weights;
  const auto& words = bytes.words;
  const auto& factors = bytes.factors;
  const int g = lane / 4;
#pragma unroll
  for (int set = 0; set < Values::kSets; ++set) {
    uint32_t mine[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) mine[i] = Scale2(weights[i], factors[set][i / 2]);
    if constexpr (Values::kOffsets) {
      const uint32_t ones = Values::kSets == 1 || g % 2 == set % 2 ? 0x3c003c00u : 0;
      Mma(sums->offset[set / 2], mine, ones, ones, __half{});
    }
#pragma unroll
    for (int w = set * Values::kTilesOfSet / 4; w < (set + 1) * Values::kTilesOfSet / 4; ++w) {
      if constexpr (kCode == KvCode::kE4M3) {
        using Bytes = ValueFragments<KvCode::kE4M3, kLatentColumns>;
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
          const uint32_t pair0 = Bytes::BytePairs(words[0][w], words[1][w], upper), pair1 = Bytes::BytePairs(words[2][w], words[3][w], upper);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            Mma(sums->o[4 * w + 2 * upper + i], mine, HalvesOfE4M3(pair0, i != 0), HalvesOfE4M3(pair1, i != 0), __half{});
          }
        }
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          Mma(sums->o[4 * w + i], mine, Values::HalfPair(words[0][w], words[1][w], i), Values::HalfPair(words[2][w], words[3][w], i), __half{});
        }
      }
    }
  }
}

// The coded columns of a part turned back: a rotation of 128 is a part, without its factor.
template <KvCode kCode>
__device__ __forceinline__ void TurnBack(int lane, LatentSums<kCode>* sums) {
  using Values = LatentValues<kCode>;
  // Bits of a column's number are bits of its tile and of g = 2 quad + e, in some order.
#pragma unroll
  for (int half = 1; half < Values::kTiles; half *= 2) {
#pragma unroll
    for (int j = 0; j < Values::kTiles; ++j) {
      if ((j & half) != 0) continue;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float a = sums->o[j][c], b = sums->o[j + half][c];
        sums->o[j][c] = a + b;
        sums->o[j + half][c] = a - b;
      }
    }
  }
  const int quad = lane % 4;
#pragma unroll
  for (auto& tile : sums->o) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float a = tile[2 * r], b = tile[2 * r + 1];
      tile[2 * r] = a + b;
      tile[2 * r + 1] = a - b;
    }
#pragma unroll
    for (float& value : tile) {
#pragma unroll
      for (int mask = 1; mask < 4; mask *= 2) {
        const float other = __shfl_xor_sync(kAllLanes, value, mask);
        value = (quad & mask) != 0 ? other - value : value + other;
      }
    }
  }
}

}  // namespace cachalot
