// A tile of 64 latents in INT6 (latent_six.h) in shared memory: scores of 16 of its tokens by a warp, and weighted sums of 128 columns of all.
#pragma once

#include "kernels/attention/attention_mla_stream.cuh"
#include "kernels/attention/attention_six_queries.cuh"

namespace cachalot {

inline constexpr uint32_t kLeastSixScale = 16 << 7;  // a scale's exponent, in BF16's place; below those of scales that are not 0
inline constexpr float kSixBoost = 64.0f;            // largest factor of a weight, but for a factor of two

__device__ __forceinline__ void StoreWords2(uint32_t to, uint32_t a, uint32_t b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};\n" ::"r"(to), "r"(a), "r"(b) : "memory");
}
__device__ __forceinline__ void StoreWords4(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// What a warp makes of its tokens for all four.
struct SixWeights {
  uint4 weights[32];                    // operand A of the weighted sums, F16
  uint2 factors[kSixGroups][4];         // F16: scales of a quad's tokens, in the state's unit
};

// Where a lane finds its things of a tile.
struct SixPlaces {
  uint32_t main, high, exact;           // of its token, as keys, of the first of the warp's tiles of eight
  uint32_t scales[2];                   // of tokens 2 quad and 2 quad + 1 of that
  uint32_t value_main[2], value_high[2];  // of the first two of its four tokens of the first step, as values
  uint32_t top_shift;

  __device__ __forceinline__ SixPlaces(int lane, int warp) {
    const int g = lane / 4, quad = lane % 4;
    const int run = SixRunOf(g) * kSixRunPitch, token = SixTokenOf(warp, 0, g);
    main = static_cast<uint32_t>(run + token * kSixMainRow + quad * 16);
    high = static_cast<uint32_t>(run + kSixHigh + token * kSixHighRow + quad * 8);
    exact = static_cast<uint32_t>(run + kSixExact + token * kSixExactRow + quad * 16);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int n = 2 * quad + e, of_run = SixRunOf(n) * kSixRunPitch;
      scales[e] = static_cast<uint32_t>(of_run + kSixScales + SixTokenOf(warp, 0, n) * kSixScaleRow);
      value_main[e] = static_cast<uint32_t>(of_run + SixTokenOf(0, 0, n) * kSixMainRow + warp * (kSixColumns / 2) + g * 8);
      value_high[e] = static_cast<uint32_t>(of_run + kSixHigh + SixTokenOf(0, 0, n) * kSixHighRow + warp * (kSixColumns / 4) + g / 2 * 8);
    }
    top_shift = static_cast<uint32_t>(g % 2 * 2);
  }
};

// Scores of a warp's 16 tokens, without their rows' factors: rows g and g + 8 in s[tile][2 r + e], columns 2 quad + e of each tile.
// scales[tile][e]: of those tokens.
__device__ __forceinline__ void SixScores(uint32_t slot, const SixPlaces& at, int lane, const SharedSixQueries& q, const float (&starts)[2][kSixGroups],
                                          float (&s)[2][4], uint32_t (&scales)[2][2][2]) {
  uint32_t exact[2][2][4];
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) LoadShared(exact[tile][half], slot + at.exact + static_cast<uint32_t>(tile * 2 * kSixExactRow + half * 64));
#pragma unroll
    for (float& score : s[tile]) score = 0;
#pragma unroll
    for (int e = 0; e < 2; ++e) LoadShared(scales[tile][e], slot + at.scales[e] + static_cast<uint32_t>(tile * 2 * kSixScaleRow));
  }
#pragma unroll
  for (int step = 0; step < kExactDim / 16; ++step) {
#pragma unroll
    for (int rest = 1; rest >= 0; --rest) {
      const uint4 four = q.exact[step][rest][lane];
      const uint32_t a[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const uint32_t* b = &exact[tile][step / 2][step % 2 * 2];
        Mma(s[tile], a, b[0], b[1], __nv_bfloat16{});
      }
    }
  }
#pragma unroll
  for (int group = 0; group < kSixGroups; ++group) {
    uint32_t main[2][4], top[2][2][2];
    int sum[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      uint32_t high[2];
      LoadShared(main[tile], slot + at.main + static_cast<uint32_t>(tile * 2 * kSixMainRow + group * 64));
      LoadShared(high, slot + at.high + static_cast<uint32_t>(tile * 2 * kSixHighRow + group * 32));
#pragma unroll
      for (int i = 0; i < 2; ++i) top[tile][i][0] = SixTop(high[0], i), top[tile][i][1] = SixTop(high[1], i);
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint4 four = q.words[(group * 4 + w) * 32 + lane];
      const uint32_t a[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) MmaBytes<false>(sum[tile], a, SixCodes(main[tile][w], top[tile][w / 2][w % 2]));
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float scale = ScaleOf(scales[tile][c % 2][group / 2], group % 2 != 0);
        s[tile][c] = __fmaf_rn(__int2float_rn(sum[tile][c]) + starts[c / 2][group], scale, s[tile][c]);
      }
    }
  }
}

// Weighted sums of a part's columns: rows g and g + 8, column 2 quad + e of tile j in o[j][2 r + e].
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
  // Sums of what is stored, times `by` of their rows; `exponent`: the unit's.
  __device__ __forceinline__ void Finish(uint32_t exponent, const float (&by)[2]) {
    const float unit = __uint_as_float(exponent << 16) * (0x1p24f / kSixBoost);
#pragma unroll
    for (auto& tile : o) {
#pragma unroll
      for (int c = 0; c < 4; ++c) tile[c] = __fmaf_rn(offset[c], -kSixBias * 0x1p-24f, tile[c]) * unit * by[c / 2];
    }
  }
};

// Adds a tile; `weights`: the four warps'.
__device__ __forceinline__ void AddSixTile(uint32_t slot, const SixPlaces& at, int lane, int part, const SixWeights (&weights)[4], SixSums* sums) {
  constexpr uint32_t kOnes = 0x3c003c00u;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint4 four = weights[step].weights[lane];
    const uint2 factors = weights[step].factors[part][lane % 4];
    uint32_t main[4][2], top[4][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t high[2];
      const int token = 4 * step + i / 2 * 2;
      LoadShared(main[i], slot + at.value_main[i % 2] + static_cast<uint32_t>(token * kSixMainRow));
      LoadShared(high, slot + at.value_high[i % 2] + static_cast<uint32_t>(token * kSixHighRow));
      top[i][0] = (high[0] >> at.top_shift) & 0x33333333u;
      top[i][1] = (high[1] >> at.top_shift) & 0x33333333u;
    }
    const uint32_t a[4] = {Scale2(four.x, factors.x), Scale2(four.y, factors.x), Scale2(four.z, factors.y), Scale2(four.w, factors.y)};
    Mma(sums->offset, a, kOnes, kOnes, __half{});
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      OperandB codes[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) codes[i] = SixCodes(main[i][w], top[i][w]);
#pragma unroll
      for (int byte = 0; byte < 4; ++byte) {
        Mma(sums->o[8 * w + byte], a, WidenBytes(codes[0].low, codes[1].low, byte), WidenBytes(codes[2].low, codes[3].low, byte), __half{});
        Mma(sums->o[8 * w + 4 + byte], a, WidenBytes(codes[0].high, codes[1].high, byte), WidenBytes(codes[2].high, codes[3].high, byte), __half{});
      }
    }
  }
}

// A group of four sums is of one head, of columns that lie side by side.
struct SixFours {
  static constexpr int kThreads = kSixGroups * 32;
  static constexpr int kOfThread = kMlaSums / 4 / kThreads;

  static __device__ __forceinline__ int HeadOf(int four) { return four % 32 / 4 + four / kThreads / 2 % 2 * 8; }
  static __device__ __forceinline__ void Write(const AttentionParams& p, int64_t row, int heads, int four, const float4& sums, float inverse) {
    const int head = HeadOf(four), i = four / kThreads, thread = four % kThreads;
    if (head >= heads) return;
    const int column = thread / 32 * kSixColumns + SixColumnOf(thread % 4 * 2 + i % 2, i / 4 * 4);
    float* to = p.out + row * p.out_token_stride + head * p.out_head_stride + column;
    const float* mean = p.kv.key_mean == nullptr ? nullptr : p.kv.key_mean + column;
    const float values[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) to[c] = __fmaf_rn(values[c], inverse, mean == nullptr ? 0.0f : mean[c]);
  }
};

}  // namespace cachalot
