// A run of 16 latents in codes (latent_run.h) as values: factors of weights, weighted sums of 128 columns a warp, and where sums belong.
#pragma once

#include "kernels/attention/attention_latent_queries.cuh"
#include "kernels/attention/attention_mla_stream.cuh"

namespace cachalot {

inline constexpr int kLatentSummers = kLatentParts * 32;  // threads
inline constexpr uint32_t kLeastScale = 16 << 7;  // a scale's exponent, in BF16's place; below those of scales that are not 0
inline constexpr float kLatentBoost = 64.0f;      // largest factor of a weight, but for a factor of two (LatentSlot::kFactors)

__device__ __forceinline__ void StoreSharedTwo(uint32_t to, uint32_t a, uint32_t b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};\n" ::"r"(to), "r"(a), "r"(b) : "memory");
}

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

// The coded columns of a part turned back: a rotation of 128 is a part, without its factor. Rows g and g + 8, column 2 quad + e of tile j in
// o[j][2 r + e]; bits of a column's number are bits of its tile and of g = 2 quad + e, in some order.
template <int kTiles>
__device__ __forceinline__ void TurnBack(int lane, float (&o)[kTiles][4]) {
#pragma unroll
  for (int half = 1; half < kTiles; half *= 2) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if ((j & half) != 0) continue;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float a = o[j][c], b = o[j + half][c];
        o[j][c] = a + b;
        o[j + half][c] = a - b;
      }
    }
  }
  const int quad = lane % 4;
#pragma unroll
  for (auto& tile : o) {
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

// A group of four sums is of one head, of columns that lie side by side.
template <KvCode kCode>
struct CodeFours {
  struct Place {
    int head, column;
    __device__ __forceinline__ Place(int i, int thread)
        : head(thread % 32 / 4 + i / 2 % 2 * 8), column(thread / 32 * kLatentColumns + LatentValues<kCode>::ColumnOf(thread % 4 * 2 + i % 2, i / 4 * 4)) {}
  };
  static constexpr int kOfThread = kMlaSums / 4 / kLatentSummers;

  static __device__ __forceinline__ int HeadOf(int four) { return Place(four / kLatentSummers, four % kLatentSummers).head; }
  static __device__ __forceinline__ void Write(const AttentionParams& p, int64_t row, int heads, int four, const float4& sums, float inverse) {
    const Place place(four / kLatentSummers, four % kLatentSummers);
    if (place.head >= heads) return;
    float* to = p.out + row * p.out_token_stride + place.head * p.out_head_stride + place.column;
    const float* mean = p.kv.key_mean == nullptr ? nullptr : p.kv.key_mean + place.column;
    const float values[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = __fmaf_rn(values[i], inverse, mean == nullptr ? 0.0f : mean[i]);
  }
};

}  // namespace cachalot
