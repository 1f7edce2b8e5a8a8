// A run of 16 latents in codes (latent_run.h) on its way from the cache to shared memory, and as keys.
#pragma once

#include "kernels/attention/attention_codes_slot.cuh"
#include "kernels/attention/attention_latent_queries.cuh"
#include "kernels/attention/attention_run.cuh"

namespace cachalot {

__device__ __forceinline__ void StoreSharedFour(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
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
  uint32_t main[Head::kWords];
};

// Where a scoring lane finds its things of a slot: of its token of the first tile, and of its quad's four tokens.
template <KvCode kCode>
struct ScoringPlaces {
  using Slot = LatentSlot<kCode>;
  using Head = typename LatentKeys<kCode>::Head;
  uint32_t main, exact, bytes, own_scales, scales, group_scales, factors, weights;

  __device__ __forceinline__ explicit ScoringPlaces(int lane) {
    const int g = lane / 4, quad = lane % 4, token = TokenOf(0, g);
    constexpr int kMine = Slot::kGroups > 8 ? Slot::kGroups / 8 : 1, kSharers = Slot::kGroups / kMine;
    main = static_cast<uint32_t>(Slot::Main(token, Head::MainOffset(quad, 0)));
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
__device__ __forceinline__ void ReadLatentKeys(uint32_t main, int part, int tile, LatentKeyCodes<kCode>* codes) {
  using Slot = LatentSlot<kCode>;
  using Head = typename LatentKeys<kCode>::Head;
  constexpr int kAtOnce = Head::kGrouped ? 1 : Head::kWords < 4 ? Head::kWords : 4;
  const auto further = static_cast<uint32_t>(tile * Slot::kTileApart * kLatentRow);
#pragma unroll
  for (int w = 0; w < Head::kWords; w += kAtOnce) {
    uint32_t words[kAtOnce];
    LoadShared(words, Slot::Further(main, part * Head::kRowBytes + Head::MainOffset(0, w)) + further);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) codes->main[w + i] = words[i];
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
      Mma(sum, a, HalvesOfE4M3(codes.main[w], false), HalvesOfE4M3(codes.main[w], true), __half{});
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
        const int step = group * kStepsOfGroup + i;
        const OperandB b = Head::Take(codes.main, nullptr, quad, step);
        MmaBytes<Head::kSigned>(sum, q.words[part][step], b);
        if constexpr (Keys::kTaken) {
          pieces[Keys::PieceOf(0, 0)][step] = b.low;
          pieces[Keys::PieceOf(0, 1)][step] = b.high;
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
  const uint32_t main = slot + at.main, bytes = slot + at.bytes;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    LatentKeyCodes<kCode> codes[kLatentParts];
#pragma unroll
    for (int part = 0; part < kLatentParts; ++part) ReadLatentKeys<kCode>(main, part, tile, &codes[part]);
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

}  // namespace cachalot
