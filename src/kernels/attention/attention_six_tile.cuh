// A tile of 64 latents in INT6 (latent_six.h) in shared memory: scores of 16 of its tokens by a warp, and
// weighted sums of 128 columns of all.
#pragma once

#include "kernels/attention/attention_mla_stream.cuh"
#include "kernels/attention/attention_six_queries.cuh"
#include "kernels/attention/attention_wgmma.cuh"

namespace cachalot {

inline constexpr uint32_t kLeastSixScale =
    16 << 7;  // a scale's exponent, in BF16's place; below those of scales that are not 0
inline constexpr float kSixBoost = 64.0f;  // largest factor of a weight, but for a factor of two

__device__ __forceinline__ void StoreWords4(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
__device__ __forceinline__ void StoreHalfWord(uint32_t to, __half value) {
  asm volatile("st.shared.u16 [%0], %1;\n" ::"r"(to), "h"(__half_as_ushort(value)) : "memory");
}

// What a warp makes of its tokens for all four.
struct SixWeights {
  unsigned char weights[512];    // F16, four matrices of 8 heads and 8 tokens: [tile of eight][half of the
                                 // heads][head][token]
  uint2 factors[kSixGroups][4];  // F16: scales of tokens 2 quad and 2 quad + 1 of both tiles of eight, in the
                                 // state's unit
};

// What is the same for all tiles.
__device__ __forceinline__ uint32_t Kept(int value) {
  auto kept = static_cast<uint32_t>(value);
  asm volatile("" : "+r"(kept));  // not worked out again
  return kept;
}

// Where a lane finds its things of a tile.
struct SixPlaces {
  uint32_t main, high, exact, scales;  // of its token, as keys, of the first of the warp's tiles of eight
  uint32_t bytes_to[2];                // of a tile's bytes: its unit's pieces as it leaves them

  __device__ __forceinline__ SixPlaces(int lane, int warp) {
    const int g = lane / 4, quad = lane % 4;
    const int run = SixRunOf(g) * kSixRunPitch, token = SixTokenOf(warp, 0, g);
    main = Kept(run + token * kSixMainRow + quad * 16);
    high = Kept(run + kSixHigh + token * kSixHighRow + quad * 8);
    exact = Kept(run + kSixExact + token * kSixExactRow + quad * 16);
    scales = Kept(run + kSixScales + token * kSixScaleRow);
#pragma unroll
    for (int e = 0; e < 2; ++e) bytes_to[e] = Kept(SixBytesAt(warp, 0, g, 0, 2 * quad + e));
  }
};

// D [64, 16] (+)= A [64, 32] B [16, 32]^T of bytes, A without and B with a sign.
__device__ __forceinline__ void MultiplyCodes(int (&d)[8], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                              uint64_t b, bool keep) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, "
      "%11}, %12, p;\n}\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(int{keep})
      : "memory");
}

// Scores of a warp's 16 tokens, without their heads' factors: of token g of tile r of eight and head 8 j + 2
// quad + e in s[4 j + 2 r + e]. scales[r]: of that token. The codes go to `bytes` as such, as soon as `ready`
// says that they may.
template <typename Ready>
__device__ __forceinline__ void SixScores(uint32_t slot, const SixPlaces& at, int lane, uint32_t queries,
                                          uint32_t bytes, Ready ready, float (&s)[8],
                                          uint32_t (&scales)[2][2]) {
  uint32_t exact[2][2][4], pair[2][1];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t of = slot + static_cast<uint32_t>(r * 2 * kSixScaleRow);
    LoadShared(scales[r], of + at.scales);
    LoadShared(pair[r], of + at.scales + static_cast<uint32_t>(lane % 2 * 4));
#pragma unroll
    for (int half = 0; half < 2; ++half)
      LoadShared(exact[r][half], slot + at.exact + static_cast<uint32_t>(r * 2 * kSixExactRow + half * 64));
  }
  const uint64_t codes = ColumnsDescriptor(queries);
  constexpr uint32_t kPanel = kCodeRows * 128;
  const uint32_t ends[4] = {pair[0][0], pair[1][0], pair[0][0], pair[1][0]};
  WgmmaBegin();
  Wgmma<__nv_bfloat16, 16, false>::MmaRegisters(s, ends, Further(codes, (kSixGroups + 2) * kPanel), false);
#pragma unroll
  for (int step = 0; step < kExactDim / 16; ++step) {
    const int w = step % 2 * 2;
    const uint32_t a[4] = {exact[0][step / 2][w], exact[1][step / 2][w], exact[0][step / 2][w + 1],
                           exact[1][step / 2][w + 1]};
#pragma unroll
    for (int rest = 1; rest >= 0; --rest) {
      Wgmma<__nv_bfloat16, 16, false>::MmaRegisters(
          s, a,
          Further(codes,
                  (kSixGroups + static_cast<uint32_t>(rest)) * kPanel + static_cast<uint32_t>(step * 32)),
          true);
    }
  }
  WgmmaCommit();
  int sum[kSixGroups][8];
  // While a group is multiplied, the one before is added.
  const auto add = [&](int group) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      asm volatile("" : "+r"(sum[group][i]), "+f"(s[i])::"memory");
      s[i] = __fmaf_rn(__int2float_rn(sum[group][i]), ScaleOf(scales[i / 2 % 2][group / 2], group % 2 != 0),
                       s[i]);
    }
  };
#pragma unroll
  for (int group = 0; group < kSixGroups; ++group) {
    OperandB taken[2][kSixSteps];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t main[4], high[2];
      LoadShared(main, slot + at.main + static_cast<uint32_t>(r * 2 * kSixMainRow + group * 64));
      LoadShared(high, slot + at.high + static_cast<uint32_t>(r * 2 * kSixHighRow + group * 32));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t top[2] = {SixTop(high[0], i), SixTop(high[1], i)};
        taken[r][2 * i] = SixCodes(main[2 * i], top[0]);
        taken[r][2 * i + 1] = SixCodes(main[2 * i + 1], top[1]);
      }
    }
    WgmmaBegin();
#pragma unroll
    for (int w = 0; w < kSixSteps; ++w) {
      MultiplyCodes(sum[group], taken[0][w].low, taken[1][w].low, taken[0][w].high, taken[1][w].high,
                    Further(codes, static_cast<uint32_t>(group) * kPanel + static_cast<uint32_t>(w * 32)),
                    w > 0);
    }
    WgmmaCommit();
    if (group == 0) ready();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        StoreWords4(
            bytes + at.bytes_to[e] + static_cast<uint32_t>(r * 8 * kSixBytesRow + group * kSixColumns),
            taken[r][2 * e].low, taken[r][2 * e].high, taken[r][2 * e + 1].low, taken[r][2 * e + 1].high);
      }
    }
    if (group == 0) continue;
    WgmmaWait<1>();
    add(group - 1);
  }
  WgmmaWait<0>();
  add(kSixGroups - 1);
}

// Weighted sums of a group's columns: rows g and g + 8, column 2 quad + e of tile j in o[j][2 r + e].
struct SixSums {
  float o[kSixTiles][4];
  float offset[4];  // sums of weights

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (auto& tile : o) {
#pragma unroll
      for (float& value : tile) value = 0;
    }
#pragma unroll
    for (float& value : offset) value = 0;
  }
  __device__ __forceinline__ void Scale(const float (&by)[2]) {
#pragma unroll
    for (auto& tile : o) {
#pragma unroll
      for (int c = 0; c < 4; ++c) tile[c] *= by[c / 2];
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) offset[c] *= by[c / 2];
  }
  // Sums of what is stored, times `by`; `exponent`: the unit's.
  __device__ __forceinline__ void Finish(uint32_t exponent, float by) {
    const float unit = __uint_as_float(exponent << 16) * (0x1p24f / kSixBoost) * by;
#pragma unroll
    for (auto& tile : o) {
#pragma unroll
      for (int c = 0; c < 4; ++c) tile[c] = __fmaf_rn(offset[c], -kSixBias * 0x1p-24f, tile[c]) * unit;
    }
  }
};

// Where an adding warp finds its bytes of tokens 2 quad and 2 quad + 1.
struct SixSources {
  uint32_t bytes[2];
  __device__ __forceinline__ SixSources(int lane, int group) {
#pragma unroll
    for (int e = 0; e < 2; ++e) bytes[e] = Kept(SixBytesAt(0, 0, lane % 4 * 2 + e, group, lane / 4));
  }
};

// What it takes from there, of a step.
struct SixStep {
  uint32_t words[4][4], weights[4];
  uint2 factors;

  __device__ __forceinline__ void Load(uint32_t bytes, const SixSources& at, int lane, int group, const SixWeights& of, int step) {
    LoadMatrix4(weights, SharedAddress(of.weights) + static_cast<uint32_t>(lane * 16));
    factors = of.factors[group][lane % 4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      LoadShared(words[i], bytes + at.bytes[i % 2] + static_cast<uint32_t>((step * 16 + i / 2 * 8) * kSixBytesRow));
    }
  }
};

// Adds a tile, of which the bytes and the four warps' weights are there. A short loop: other warps run other code meanwhile.
__device__ __forceinline__ void AddSixTile(uint32_t bytes, const SixSources& at, int lane, int group, const SixWeights (&weights)[4],
                                           SixSums* sums) {
  constexpr uint32_t kOnes = 0x3c003c00u;
  SixStep next;
  next.Load(bytes, at, lane, group, weights[0], 0);
#pragma unroll 1
  for (int step = 0; step < 4; ++step) {
    const SixStep now = next;
    if (step < 3) next.Load(bytes, at, lane, group, weights[step + 1], step + 1);
    const uint32_t a[4] = {Scale2(now.weights[0], now.factors.x), Scale2(now.weights[1], now.factors.x), Scale2(now.weights[2], now.factors.y),
                           Scale2(now.weights[3], now.factors.y)};
    Mma(sums->offset, a, kOnes, kOnes, __half{});
#pragma unroll
    for (int w = 0; w < 4; ++w) {
#pragma unroll
      for (int byte = 0; byte < 4; ++byte) {
        Mma(sums->o[4 * w + byte], a, WidenBytes(now.words[0][w], now.words[1][w], byte), WidenBytes(now.words[2][w], now.words[3][w], byte), __half{});
      }
    }
  }
}

}  // namespace cachalot
