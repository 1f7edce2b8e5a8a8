// Absorbed MLA over a quantised latent cache (512 coded values and 64 of BF16) on wgmma, in the shape of attention_mla_sm90.cu: tiles of 64
// rows, or of 32 with their rests, 64 tokens a stage, two stages. A third warpgroup takes the codes apart, once for all heads: while the
// others attend one stage it writes the F16 values of the next, whose codes have been on their way to its registers since the last round,
// and asks for those behind.
//
// Bound (k6v8): 528 bytes a token, 64 tokens at 18.6 bytes a clock are 1,820 clocks; tensor cores 36 wgmma of 32 clocks and 4 of 256, 2,180
// clocks for any number of rows up to 64, so above memory's; taking codes apart about 2,700 instructions of a warpgroup, 680 clocks
// beside the others.
//
// F16 holds latents of any size: a tile's values are divided by a power of two, the largest so far of its item, that puts the largest
// scale into [1, 2) and the exact part below 2^15. Scores and sums are multiplied by it again.
#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_codes_run.cuh"
#include "kernels/attention/attention_prefetch.cuh"
#include "kernels/attention/attention_query_rows.cuh"
#include "kernels/attention/attention_split.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/attention_wgmma.cuh"
#include "kernels/attention/latent_tile.h"
#include "kernels/common/kv_codes.cuh"
#include "kernels/common/paged_kv.cuh"
#include "quant/kv_rotate.h"

namespace cachalot {
namespace {

constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kConsumerThreads = 2 * kGroup;
constexpr int kThreads = kConsumerThreads + kGroup;
constexpr int kWarps = kConsumerThreads / 32;
// Of a thread. The block has what it began with: as many as may be for each thread alike, in eights.
constexpr int kBlockRegisters = 65536 / kThreads / 8 * 8 * kThreads;
constexpr int kConsumerRegisters = 192, kCopierRegisters = 120;
static_assert(kConsumerThreads * kConsumerRegisters + kGroup * kCopierRegisters <= kBlockRegisters);
constexpr int kRows = kMlaTileRows;
constexpr int kRests = kMlaPreciseRows;  // where the rests of row r lie: kRests + r
constexpr int kKeyDim = kLatentDim + kExactDim;
constexpr int kTokens = kLatentTokens;
constexpr int kPanelTileBytes = kTokens * kPanelBytes;
constexpr int kTileBytes = kKeyDim / kPanelValues * kPanelTileBytes;  // queries, and a stage
constexpr int kWeightsBytes = kRows * kTokens * 2;
constexpr int kColumns = kLatentDim / 2;  // of a warpgroup
constexpr int kSums = kColumns / 2;       // of a thread
constexpr int kLeastUnit = -100, kMostUnit = 100;
constexpr int kExactBits = 14;            // the exact part's exponent above the unit's
constexpr float kQueryBoost = 256.0f;     // largest value of a query as it is stored, but for a factor of two

// All of the block's shared memory; tiles are aligned to 1024 bytes, as the block's memory is.
struct Shared {
  unsigned char queries[kTileBytes];
  unsigned char stages[2][kTileBytes];
  unsigned char weights[kWeightsBytes];  // [kRows][kTokens]; in between what warps hand each other
  TileRow rows[kRows];
  float row_factors[kRows];     // of scores of what is stored, in units of log2
  float factors[kRows];
  float sums[kRows];            // of weights
  int units[2];                 // exponent of a stage's power of two
  int most[4];                  // of a warp of the third group
};
static_assert(sizeof(Shared) <= 227 * 1024 && kRows == kTokens && 2 * kRests == kRows);

// The threads of one warpgroup.
__device__ __forceinline__ void MeetGroup(int group) {
  if (group == 0) {
    asm volatile("bar.sync 1, %0;\n" ::"n"(kGroup) : "memory");
  } else if (group == 1) {
    asm volatile("bar.sync 2, %0;\n" ::"n"(kGroup) : "memory");
  } else {
    asm volatile("bar.sync 3, %0;\n" ::"n"(kGroup) : "memory");
  }
}
// The two that attend.
__device__ __forceinline__ void MeetConsumers() { asm volatile("bar.sync 4, %0;\n" ::"n"(kConsumerThreads) : "memory"); }

__device__ __forceinline__ float PowerOfTwo(int exponent) {
  return __uint_as_float(static_cast<uint32_t>(min(max(exponent + 127, 1), 254)) << 23);
}

__device__ __forceinline__ void StoreShared128(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// Where a row's 16-byte piece of eight values lies in a tile.
__device__ __forceinline__ uint32_t PieceAt(uint32_t tile, int row, int piece) {
  return tile + piece / 8 * kPanelTileBytes + Swizzled<kPanelBytes>(row, piece % 8);
}

// A tile that is copied: of work item `work`, from t0 on.
struct Cursor {
  int work;
  SplitItem item;
  SeqSpan span;
  int t0;
  bool first;  // of its item
};

// What a thread of the third warpgroup has of a tile until it is taken apart (latent_tile.h).
template <KvCode kCode>
struct RawTile {
  using Code = LatentCode<kCode>;
  uint32_t main[kLatentUnits][Code::kWords];
  uint32_t high[kLatentUnits][Code::kHighWords == 0 ? 1 : Code::kHighWords];
  uint32_t scales[kLatentUnits / 2];  // two units each
  uint32_t exact[kLatentRuns][4];
};

template <KvCode kCode>
__device__ __forceinline__ void LoadRaw(const PagedKv& kv, const CodePlanes& planes, const AttentionSchedule& s, const Cursor& at,
                                        RawTile<kCode>* raw) {
  using Code = LatentCode<kCode>;
  const TileRange range = RangeOfTile(at.span, at.item.tile, TileRowsOf(s, at.span), s.group, s.window);
  const int low = range.begin, high = min(range.end, at.item.end);
  const int thread = static_cast<int>(threadIdx.x) % kGroup;
  const int32_t* table = kv.block_tables + at.span.slot * kv.table_stride;
#pragma unroll
  for (int run = 0; run < kLatentRuns; ++run) {
    const int t = at.t0 + run * kRunTokens;
    const bool any = t < high && t + kRunTokens > low;
    if (!any) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (uint32_t& word : raw->main[2 * run + half]) word = 0;
#pragma unroll
        for (uint32_t& word : raw->high[2 * run + half]) word = 0;
      }
      raw->scales[run] = 0;
#pragma unroll
      for (uint32_t& word : raw->exact[run]) word = 0;
      continue;
    }
    const std::byte* region = kv.data + int64_t{table[t / kv.block_tokens]} * kv.block_bytes;
    const int row = t % kv.block_tokens;
    uint32_t scale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int unit = LatentUnitOf(thread, half), token = row + LatentTokenOf(thread);
      LoadWords(raw->main[2 * run + half], region + static_cast<uint32_t>(planes.key.main + token * Code::kRowBytes + unit * Code::kUnitBytes));
      if constexpr (Code::kHighWords > 0) {
        LoadWords(raw->high[2 * run + half], region + static_cast<uint32_t>(planes.key.high + token * Code::kHighRowBytes + unit * 8));
      }
      const int group = unit * planes.key.groups / kLatentRowUnits;
      scale[half] = LoadHalfWord(region + static_cast<uint32_t>(planes.key.scales + (token * planes.key.groups + group) * 2));
    }
    raw->scales[run] = scale[0] | scale[1] << 16;
    const int exact = (row + ExactTokenOf(thread)) * (2 * kExactDim) + ExactPieceOf(thread) * 16;
    LoadWords(raw->exact[run], region + static_cast<uint32_t>(planes.exact + exact));
    if (t >= low && t + kRunTokens <= high) continue;
    if (const int token = t + LatentTokenOf(thread); token < low || token >= high) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (uint32_t& word : raw->main[2 * run + half]) word = 0;
      }
      raw->scales[run] = 0;
    }
    if (const int token = t + ExactTokenOf(thread); token < low || token >= high) {
#pragma unroll
      for (uint32_t& word : raw->exact[run]) word = 0;
    }
  }
}

// Two values of a unit, from two bytes of b.
template <KvCode kCode>
__device__ __forceinline__ uint32_t LatentPair(uint32_t b, bool upper, uint32_t scale) {
  if constexpr (kCode == KvCode::kE4M3) {
    const uint32_t halves = HalvesOfE4M3(b, upper);
    const __half2 scaled = __hmul2(*reinterpret_cast<const __half2*>(&halves), *reinterpret_cast<const __half2*>(&scale));
    return *reinterpret_cast<const uint32_t*>(&scaled);
  } else {
    return SubAndScale2(LatentCode<kCode>::HalfPair(b, upper), LatentCode<kCode>::kOffset, scale);
  }
}

// The codes as F16 into a stage; *unit: the exponent of the item's power of two, which may grow. All of the third warpgroup.
template <KvCode kCode>
__device__ __forceinline__ void StoreTile(const RawTile<kCode>& raw, bool first, int* unit, int* most, uint32_t stage) {
  const int thread = static_cast<int>(threadIdx.x) % kGroup, lane = thread % 32, warp = thread / 32;
  uint32_t scale = 0, exact = 0;
#pragma unroll
  for (const uint32_t pair : raw.scales) scale = __vmaxu2(scale, pair);
#pragma unroll
  for (const auto& words : raw.exact) {
#pragma unroll
    for (const uint32_t word : words) exact = __vmaxu2(exact, word & 0x7fff7fffu);
  }
  const int scale_exponent = static_cast<int>(max(scale >> 16, scale & 0xffffu) >> 7) - 127;
  const int exact_exponent = static_cast<int>(max(exact >> 16, exact & 0xffffu) >> 7) - 127 - kExactBits;
  const int mine = __reduce_max_sync(kAllLanes, max(scale_exponent, exact_exponent));
  if (lane == 0) most[warp] = mine;
  MeetGroup(2);
  int now = min(max(max(max(most[0], most[1]), max(most[2], most[3])), kLeastUnit), kMostUnit);
  if (!first) now = max(now, *unit);
  *unit = now;
  const float inverse = PowerOfTwo(-now);
#pragma unroll
  for (int run = 0; run < kLatentRuns; ++run) {
    const int token = run * kRunTokens + LatentTokenOf(thread);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = 2 * run + half, piece = LatentUnitOf(thread, half) * 4;
      const float scaled = ScaleOf(raw.scales[run], half != 0) * inverse * LatentCode<kCode>::kStep;
      const uint32_t by = Pack2(scaled, scaled, __half{});
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const uint32_t b0 = LatentCode<kCode>::BytesOf(raw.main[at], raw.high[at], 2 * p);
        const uint32_t b1 = LatentCode<kCode>::BytesOf(raw.main[at], raw.high[at], 2 * p + 1);
        StoreShared128(PieceAt(stage, token, piece + p), LatentPair<kCode>(b0, false, by), LatentPair<kCode>(b0, true, by),
                       LatentPair<kCode>(b1, false, by), LatentPair<kCode>(b1, true, by));
      }
    }
    uint32_t halves[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = Unpack2(raw.exact[run][i], __nv_bfloat16{});
      halves[i] = Pack2(two.x * inverse, two.y * inverse, __half{});
    }
    StoreShared128(PieceAt(stage, run * kRunTokens + ExactTokenOf(thread), kLatentDim / 8 + ExactPieceOf(thread)), halves[0], halves[1], halves[2],
                   halves[3]);
  }
}

// A row of the queries by a warp: the coded part rotated and, where the keys' codes are integers, rounded as attention_query.h says; both
// parts by one power of two in F16's range, and their rests.
__device__ __forceinline__ void StoreLatentQuery(const AttentionParams& p, const CodePlanes& planes, const TileRow& row, int r, bool aligned,
                                                 bool rests, uint32_t queries, float* row_factor) {
  constexpr int kValues = LatentQueryRow::kValues;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  LatentQueryRow query(p, planes, row, aligned);
  auto& x = query.x;
  const auto& tail = query.tail;
  float largest = 0;
#pragma unroll
  for (const float value : x) largest = MaxOrNan(largest, fabsf(value));
  if (HasIntegerKeys(planes)) {
    const CodedQueryScale scale = QueryScaleOfWarp(largest);
#pragma unroll
    for (float& value : x) value = __fmul_rn(rintf(__fmul_rn(value, scale.inverse)), scale.scale);
    if (scale.scale != scale.scale) largest = scale.scale;
  }
#pragma unroll
  for (const float value : tail) largest = MaxOrNan(largest, fabsf(value));
  const bool finite = __all_sync(kAllLanes, largest <= FLT_MAX);
  largest = WarpMax(largest);
  const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 30u), 230u);
  const float inverse = finite ? __uint_as_float((254 - exponent) << 23) * kQueryBoost : 0.0f;
#pragma unroll
  for (int h = 0; h < kValues / 8; ++h) {
    uint32_t high[4], rest[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float a = finite ? x[8 * h + 2 * i] * inverse : 0.0f, b = finite ? x[8 * h + 2 * i + 1] * inverse : 0.0f;
      high[i] = Pack2(a, b, __half{});
      rest[i] = PackRest2(a, b, high[i], __half{});
    }
    const int piece = lane * (kValues / 8) + h;
    StoreShared128(PieceAt(queries, r, piece), high[0], high[1], high[2], high[3]);
    if (rests) StoreShared128(PieceAt(queries, r + kRests, piece), rest[0], rest[1], rest[2], rest[3]);
  }
  const float a = finite ? tail[0] * inverse : 0.0f, b = finite ? tail[1] * inverse : 0.0f;
  const uint32_t high = Pack2(a, b, __half{});
  const int piece = kLatentDim / 8 + lane / 4;
  StoreShared32(PieceAt(queries, r, piece) + lane % 4 * 4, high);
  if (rests) StoreShared32(PieceAt(queries, r + kRests, piece) + lane % 4 * 4, PackRest2(a, b, high, __half{}));
  if (lane == 0) {
    *row_factor = finite ? p.scale / static_cast<float>(planes.rotation) * kLog2E * (__uint_as_float(exponent << 23) / kQueryBoost) : CUDART_NAN_F;
  }
}

// Adds what warps 2 and 3 of the warpgroup hold (rows kRests ..) to what warps 0 and 1 hold, through `hand` [16 * 64].
__device__ __forceinline__ void AddRests(float (&o)[kSums], float* hand, int group) {
  const int thread = static_cast<int>(threadIdx.x) % kGroup;
#pragma unroll
  for (int begin = 0; begin < kSums; begin += 16) {
    if (thread >= kGroup / 2) {
#pragma unroll
      for (int i = 0; i < 16; ++i) hand[i * 64 + thread - kGroup / 2] = o[begin + i];
    }
    MeetGroup(group);
    if (thread < kGroup / 2) {
#pragma unroll
      for (int i = 0; i < 16; ++i) o[begin + i] += hand[i * 64 + thread];
    }
    MeetGroup(group);
  }
}

// The third warpgroup: all tiles of the block's items one after the other. At each __syncthreads a stage is there for the others, who have
// read the other one.
template <KvCode kCode>
__device__ __forceinline__ void CopyTiles(const AttentionParams& p, const CodePlanes& planes, const SeqSpan* spans, const AttentionSchedule& s,
                                          int num_items, Shared& shared) {
  const SplitItem item = s.items[blockIdx.x];
  Cursor at = {static_cast<int>(blockIdx.x), item, spans[item.span], item.begin, true};
  int unit = kLeastUnit;
  RawTile<kCode> raw;
  LoadRaw<kCode>(p.kv, planes, s, at, &raw);
  for (int stage = 0;; stage ^= 1) {
    StoreTile<kCode>(raw, at.first, &unit, shared.most, SharedAddress(shared.stages[stage]));
    if (threadIdx.x == kConsumerThreads) shared.units[stage] = unit;
    FenceForWgmma();
    at.first = false;
    at.t0 += kTokens;
    bool more = true;
    if (at.t0 >= at.item.end) {
      at.work += static_cast<int>(gridDim.x);
      more = at.work < num_items;
      if (more) {
        at.item = s.items[at.work];
        at.span = spans[at.item.span];
        at.t0 = at.item.begin;
        at.first = true;
      }
    }
    if (more) LoadRaw<kCode>(p.kv, planes, s, at, &raw);
    __syncthreads();
    if (!more) return;
  }
}

template <KvCode kCode>
__global__ __launch_bounds__(kThreads, 1) void MlaCodesKernel(const __grid_constant__ AttentionParams p, const __grid_constant__ CodePlanes planes,
                                                              const SeqSpan* spans, const __grid_constant__ AttentionSchedule s) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, g = lane / 4, quad = lane % 4;
  const int group = tid / kGroup, warp = tid % kGroup / 32;  // of the warpgroup
  const uint32_t queries = SharedAddress(shared.queries), weights = SharedAddress(shared.weights);
  float* hand = reinterpret_cast<float*>(shared.weights);
  const bool aligned = p.q_token_stride % 4 == 0 && p.q_head_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.q) % 16 == 0;
  LetNextKernelStart();
  PrefetchUpcoming(p);
  WaitForEarlierKernels();
  const int num_items = s.counts->num_items;
  int work = static_cast<int>(blockIdx.x);
  if (work >= num_items) return;

  if (group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kCopierRegisters));
    CopyTiles<kCode>(p, planes, spans, s, num_items, shared);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kConsumerRegisters));

  SplitItem item = s.items[work];
  SeqSpan span = spans[item.span];
  int stage = 0;
  while (true) {
    work += static_cast<int>(gridDim.x);
    const bool more = work < num_items;
    const int tile_rows = TileRowsOf(s, span);
    const bool precise = tile_rows <= kMlaPreciseRows;

    MeetConsumers();  // the last item's rows and weights have been read
    if (tid < kRows) {
      const int r = precise ? tid % kRests : tid;
      shared.rows[tid] = RowOfTile(span, item.tile * tile_rows + r, s.group, 0);
    }
    MeetConsumers();
#pragma unroll 1
    for (int r = tid / 32; r < tile_rows; r += kWarps) {
      StoreLatentQuery(p, planes, shared.rows[r], r, aligned, precise, queries, &shared.row_factors[r]);
    }
    FenceForWgmma();
    MeetConsumers();

    // Of the first warpgroup: its rows of the scores. With rests, those of warps 0 and 1 are whole, 2 and 3 have none.
    const bool scores_whole = group == 0 && (!precise || warp < 2);
    const int row0 = warp * 16 + g;  // and row0 + 8
    int visible_begin[2], visible_end[2];
    float row_factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = shared.rows[row0 + 8 * r].position;
      visible_begin[r] = VisibleBegin(position, s.window);
      visible_end[r] = min(position + 1, item.end);
      row_factor[r] = scores_whole ? shared.row_factors[row0 + 8 * r] : 0.0f;
    }
    float m[2] = {-CUDART_INF_F, -CUDART_INF_F}, l[2] = {0, 0};
    int unit = kLeastUnit;
    float o[kSums];
#pragma unroll
    for (float& value : o) value = 0;

    for (int t0 = item.begin; t0 < item.end; t0 += kTokens, stage ^= 1) {
      const bool last = t0 + kTokens >= item.end;
      __syncthreads();  // this stage is there; the other one and the weights have been read
      const uint32_t keys = SharedAddress(shared.stages[stage]);
      const int now = shared.units[stage];
      if (group == 0) {
        float score[kTokens / 2];
        WgmmaBegin();
#pragma unroll
        for (int kk = 0; kk < kKeyDim / 16; ++kk) {
          const uint32_t at = kk / 4 * kPanelTileBytes + kk % 4 * 32;
          Wgmma<__half, kTokens, false>::Mma(score, ColumnsDescriptor(queries + at), ColumnsDescriptor(keys + at), kk > 0);
        }
        WgmmaCommit();
        WgmmaWait<0>(score);
        if (precise) {
          if (warp >= 2) {
#pragma unroll
            for (int i = 0; i < kTokens / 2; ++i) hand[i * 64 + tid - 64] = score[i];
          }
          MeetGroup(0);
          if (warp < 2) {
#pragma unroll
            for (int i = 0; i < kTokens / 2; ++i) score[i] += hand[i * 64 + tid];
          }
          MeetGroup(0);  // the weights may lie where the rests of the scores did
        }
        if (scores_whole) {
          const float by = PowerOfTwo(now);
          const float score_scale[2] = {row_factor[0] * by, row_factor[1] * by};
          float largest[2] = {m[0], m[1]};
#pragma unroll
          for (int i = 0; i < kTokens / 2; ++i) {
            const int t = t0 + i / 4 * 8 + quad * 2 + i % 2, r = i / 2 % 2;
            score[i] = t < visible_begin[r] || t >= visible_end[r] ? -CUDART_INF_F : score[i] * score_scale[r];
            largest[r] = fmaxf(largest[r], score[i]);
          }
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 1));
            largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 2));
            const bool none = largest[r] == -CUDART_INF_F;
            const float factor = none ? 1.0f : exp2f(m[r] - largest[r]);
            m[r] = largest[r];
            const int row = row0 + 8 * r;
            float sum = 0;
#pragma unroll
            for (int j = 0; j < kTokens / 8; ++j) {
              const float a = none ? 0.0f : exp2f(score[4 * j + 2 * r] - largest[r]);
              const float b = none ? 0.0f : exp2f(score[4 * j + 2 * r + 1] - largest[r]);
              sum += a + b;
              const uint32_t rounded = Pack2(a, b, __half{});
              StoreShared32(weights + Swizzled<kPanelBytes>(row, j) + quad * 4, rounded);
              if (precise) {
                StoreShared32(weights + Swizzled<kPanelBytes>(row + kRests, j) + quad * 4, PackRest2(a, b, rounded, __half{}));
              }
            }
            l[r] = __fmaf_rn(l[r], factor, sum);
            if (quad == 0) {
              shared.factors[row] = factor;
              if (precise) shared.factors[row + kRests] = factor;
            }
          }
          FenceForWgmma();
        }
      }
      MeetConsumers();  // weights and factors are there

      if (t0 == item.begin) unit = now;
      const float shrink = PowerOfTwo(unit - now);  // a unit never falls
      unit = now;
      const float factor[2] = {shared.factors[row0] * shrink, shared.factors[row0 + 8] * shrink};
      if (__any_sync(kAllLanes, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) o[i] *= factor[i / 2 % 2];
      }
      WgmmaBegin();
#pragma unroll
      for (int kk = 0; kk < kTokens / 16; ++kk) {
        const uint32_t values = keys + group * (kColumns / kPanelValues) * kPanelTileBytes + kk * 16 * kPanelBytes;
        Wgmma<__half, kColumns, true>::Mma(o, ColumnsDescriptor(weights + kk * 32), RowsDescriptor(values, kPanelTileBytes), true);
      }
      WgmmaCommit();
      WgmmaWait<0>(o);
      if (!last) continue;

      if (scores_whole) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int row = row0 + 8 * r;
          l[r] += __shfl_xor_sync(kAllLanes, l[r], 1);
          l[r] += __shfl_xor_sync(kAllLanes, l[r], 2);
          if (quad != 0) continue;
          shared.sums[row] = l[r];
          if (item.partial >= 0 && shared.rows[row].position >= 0) {
            s.partial_stats[int64_t{item.partial} * s.partial_rows + row] = {m[r], l[r]};
          }
        }
      }
      MeetConsumers();  // nobody reads the weights; the rows' numbers are there
      if (precise) AddRests(o, hand + group * 16 * 64, group);
    }

    if (!precise || warp < 2) {
      const float back = PowerOfTwo(unit);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = row0 + 8 * r;
        const TileRow to_row = shared.rows[row];
        if (to_row.position < 0) continue;
        const int column = group * kColumns + quad * 2;
        if (item.partial >= 0) {
          float* to = s.partial_out + (int64_t{item.partial} * s.partial_rows + row) * kLatentDim + column;
#pragma unroll
          for (int j = 0; j < kColumns / 8; ++j) {
            *reinterpret_cast<float2*>(to + j * 8) = {o[4 * j + 2 * r] * back, o[4 * j + 2 * r + 1] * back};
          }
        } else {
          const float sum = shared.sums[row];
          float* to = p.out + to_row.row * p.out_token_stride + to_row.head * p.out_head_stride + column;
#pragma unroll
          for (int j = 0; j < kColumns / 8; ++j) {
            to[j * 8] = __fdiv_rn(o[4 * j + 2 * r] * back, sum);
            to[j * 8 + 1] = __fdiv_rn(o[4 * j + 2 * r + 1] * back, sum);
          }
        }
      }
    }
    if (!more) break;
    item = s.items[work];
    span = spans[item.span];
  }
#endif
}

// The output of a row and head turned back, and its mean added: a warp each.
__global__ __launch_bounds__(kConsumerThreads) void UnrotateKernel(const __grid_constant__ AttentionParams p, const SeqSpan* spans, const int32_t* row_spans,
                                                           int64_t num_heads, int rotation) {
  constexpr int kValues = kLatentDim / 32;  // of a lane, side by side
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t at = int64_t{blockIdx.x} * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (at >= num_heads) return;
  const int64_t row = at / p.num_q_heads;
  const int span = row_spans[row];
  if (span < 0 || spans[span].q_len <= 0) return;
  float* out = p.out + row * p.out_token_stride + at % p.num_q_heads * p.out_head_stride + lane * kValues;
  float x[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) x[i] = out[i];
  if (rotation > 1) RotateByLanes<kMaxKvRotation / kValues>(x);
  const float inverse = 1.0f / static_cast<float>(rotation);
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    out[i] = __fmaf_rn(x[i], inverse, p.kv.key_mean == nullptr ? 0.0f : p.kv.key_mean[lane * kValues + i]);
  }
}

template <KvCode kCode>
CudaStatus Launch(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                  const CodePlanes& planes) {
  auto* kernel = &MlaCodesKernel<kCode>;
  if (CudaStatus failure = AllowSharedBytes(kernel, int64_t{sizeof(Shared)}, "attention MLA over codes")) return failure;
  const auto grid = static_cast<unsigned>(schedule.max_items < exec.num_sms ? schedule.max_items : exec.num_sms);
  LaunchOverlapped<LaunchRole::kAttention>(kernel, grid, kThreads, int64_t{sizeof(Shared)}, exec.stream, params, planes, batch.spans, schedule);
  return CudaLaunched("attention MLA over codes of %d spans, %d heads", batch.num_spans, params.num_q_heads);
}

}  // namespace

bool MlaCodesCover(const AttentionParams& params, const CodePlanes& planes) {
  const PagedKv& kv = params.kv;
  const int32_t groups = planes.key.groups;
  const bool known = planes.key.code == KvCode::kInt8 || planes.key.code == KvCode::kInt6 || planes.key.code == KvCode::kInt4 ||
                     planes.key.code == KvCode::kE4M3;
  return known && kv.num_kv_heads == 1 && kv.k_dim == kKeyDim && kv.v_dim == kLatentDim && planes.value_in_key && planes.exact_dim == kExactDim &&
         (groups == 1 || groups == 4 || groups == 8 || groups == 16) && (planes.rotation == 1 || planes.rotation == kMaxKvRotation) &&
         kv.block_tokens % 16 == 0 && kv.block_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(kv.data) % 16 == 0 && params.scale > 0 &&
         CurrentCard().RunsHopperCode();
}

CudaStatus RunMlaCodes(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                       const CodePlanes& planes) {
  switch (planes.key.code) {
    case KvCode::kInt8:
      return Launch<KvCode::kInt8>(exec, batch, schedule, params, planes);
    case KvCode::kInt6:
      return Launch<KvCode::kInt6>(exec, batch, schedule, params, planes);
    case KvCode::kInt4:
      return Launch<KvCode::kInt4>(exec, batch, schedule, params, planes);
    default:
      return Launch<KvCode::kE4M3>(exec, batch, schedule, params, planes);
  }
}

CudaStatus RunUnrotate(const CudaExec& exec, const CudaBatch& batch, const AttentionParams& params, const CodePlanes& planes) {
  if (planes.rotation == 1 && params.kv.key_mean == nullptr) return nullptr;
  const int64_t num_heads = int64_t{batch.num_rows} * params.num_q_heads;
  const auto grid = static_cast<unsigned>((num_heads + kWarps - 1) / kWarps);
  LaunchOverlapped<LaunchRole::kAttention>(&UnrotateKernel, grid, kConsumerThreads, 0, exec.stream, params, batch.spans, batch.row_spans, num_heads,
                                           static_cast<int>(planes.rotation));
  return CudaLaunched("attention's output turned back, %d rows, %d heads", batch.num_rows, params.num_q_heads);
}

}  // namespace cachalot
