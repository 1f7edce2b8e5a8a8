// Absorbed MLA over a paged 16-bit latent cache (keys of 576, the value is their first 512) on wgmma: every head shares the
// keys, which are brought into shared memory once for scores and values, 64 tokens a stage, two stages.
//
// A tile is 64 rows of the tensor cores: 64 rows (token, head), or 32 rows and behind them their rests (attention_tile.cuh)
// where a tile has no more rows or sees few tokens, and in deterministic mode. Two warpgroups: the first makes scores and
// weights while the second copies the next stage; then each sums 256 of the 512 columns.
// Bound: 1152 bytes a token and sequence up to about 64 heads, tensor cores above.
#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_prefetch.cuh"
#include "kernels/attention/attention_split.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/attention_wgmma.cuh"
#include "kernels/common/paged_kv.cuh"

namespace cachalot {
namespace {

constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kThreads = 2 * kGroup;
constexpr int kRows = kMlaTileRows;
constexpr int kRests = kMlaPreciseRows;  // where the rests of row r lie: kRests + r
constexpr int kKeyDim = 576;
constexpr int kValueDim = 512;
constexpr int kTokens = 64;
constexpr int kPanelTileBytes = kTokens * kPanelBytes;
constexpr int kTileBytes = kKeyDim / kPanelValues * kPanelTileBytes;  // queries, and a stage
constexpr int kWeightsBytes = kRows * kTokens * 2;
constexpr int kColumns = kValueDim / 2;  // of a warpgroup
constexpr int kSums = kColumns / 2;      // of a thread

// All of the block's shared memory; tiles are aligned to 1024 bytes, as the block's memory is.
struct Shared {
  unsigned char queries[kTileBytes];
  unsigned char stages[2][kTileBytes];
  unsigned char weights[kWeightsBytes];  // [kRows][kTokens]; in between what warps hand each other
  TileRow rows[kRows];
  float factors[kRows];
  float sums[kRows];            // of weights
  float fold_a[kRows], fold_b[kRows];
};
static_assert(sizeof(Shared) <= 227 * 1024 && kRows == kTokens && 2 * kRests == kRows);

// The threads of one warpgroup. Where one meets, both do, since a checker of races (compute-sanitizer's) counts
// barriers, and loses the block's own behind one that only some threads come to.
__device__ __forceinline__ void MeetGroup(int group) {
  if (group == 0) {
    asm volatile("bar.sync 1, %0;\n" ::"n"(kGroup) : "memory");
  } else {
    asm volatile("bar.sync 2, %0;\n" ::"n"(kGroup) : "memory");
  }
}

// Warp w of the copying warpgroup brings tokens 16 w .. 16 w + 15 of the stage, which lie in one block of the cache; zeros
// outside [low, high).
template <typename T>
__device__ __forceinline__ void CopyStage(const PagedKv& kv, int slot, int t0, int low, int high, uint32_t stage) {
  const int lane = threadIdx.x % 32, first = static_cast<int>(threadIdx.x) % kGroup / 32 * 16, t = t0 + first;
  const bool any = t < high && t + 16 > low;
  const T* from = reinterpret_cast<const T*>(kv.data);  // a source is named even where nothing is read
  if (any) from = reinterpret_cast<const T*>(BlockOf(kv, slot, t)) + int64_t{t % kv.block_tokens} * kKeyDim;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 8 + 4 * i, piece = lane % 8;
    const bool valid = any && t + row >= low && t + row < high;
    const T* source = (valid ? from + row * kKeyDim : from) + piece * 8;
    const uint32_t to = stage + Swizzled<kPanelBytes>(first + row, piece);
#pragma unroll
    for (int panel = 0; panel < kKeyDim / kPanelValues; ++panel) {
      CopyAsync16(to + panel * kPanelTileBytes, source + panel * kPanelValues, valid);
    }
  }
}

// The queries of the first num_rows rows, scaled for softmax in base 2, kWidth values at a time; with their rests.
template <typename T, int kWidth>
__device__ __forceinline__ void StoreQueryTile(const AttentionParams& p, const TileRow* rows, int num_rows, bool rests,
                                               uint32_t queries) {
  constexpr int kUnits = kKeyDim / kWidth;  // of a row
  constexpr int kBatch = kWidth == 4 ? 12 : 6;  // loads under way at a time; more is more code, and it runs once
  const float scale = p.scale * kLog2E;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first < num_rows * kUnits; first += kBatch * kThreads) {
    float q[kBatch][kWidth];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + i * kThreads;
#pragma unroll
      for (float& value : q[i]) value = 0;
      if (at >= num_rows * kUnits) continue;
      const TileRow row = rows[at / kUnits];
      if (row.position < 0) continue;
      const float* from = p.q + row.row * p.q_token_stride + row.head * p.q_head_stride + at % kUnits * kWidth;
      if constexpr (kWidth == 4) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        q[i][0] = four.x, q[i][1] = four.y, q[i][2] = four.z, q[i][3] = four.w;
      } else {
        q[i][0] = from[0], q[i][1] = from[1];
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + i * kThreads;
      if (at >= num_rows * kUnits) continue;
      const int row = at / kUnits, column = at % kUnits * kWidth;
      const uint32_t panel = queries + column / kPanelValues * kPanelTileBytes;
      const int piece = column % kPanelValues / 8, rest_row = row + kRests;
#pragma unroll
      for (int c = 0; c < kWidth; c += 2) {
        const float a = q[i][c] * scale, b = q[i][c + 1] * scale;
        const uint32_t rounded = Pack2(a, b, T{}), in_piece = (column % 8 + c) * 2;
        StoreShared32(panel + Swizzled<kPanelBytes>(row, piece) + in_piece, rounded);
        if (rests) StoreShared32(panel + Swizzled<kPanelBytes>(rest_row, piece) + in_piece, PackRest2(a, b, rounded, T{}));
      }
    }
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

template <typename T, bool kFold>
__global__ __launch_bounds__(kThreads, 1) void MlaKernel(AttentionParams p, const SeqSpan* spans, AttentionSchedule s) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, g = lane / 4, quad = lane % 4;
  const int group = tid / kGroup, warp = tid % kGroup / 32;  // of the warpgroup
  const uint32_t queries = SharedAddress(shared.queries), weights = SharedAddress(shared.weights);
  float* hand = reinterpret_cast<float*>(shared.weights);
  float* folded = s.fold_memory + (int64_t{blockIdx.x} * 2 + group) * (kSums * 64) + tid % kGroup;  // [kSums][64]
  const bool aligned = p.q_token_stride % 4 == 0 && p.q_head_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.q) % 16 == 0;
  LetNextKernelStart();
  PrefetchUpcoming(p);
  WaitForEarlierKernels();
  const int num_items = s.counts->num_items;
  int work = static_cast<int>(blockIdx.x);
  if (work >= num_items) return;

  const auto copy = [&](const SplitItem& item, const SeqSpan& span, int t0, int stage) {
    const TileRange range = RangeOfTile(span, item.tile, TileRowsOf(s, span), s.group, s.window);
    CopyStage<T>(p.kv, span.slot, t0, range.begin, min(range.end, item.end), SharedAddress(shared.stages[stage]));
    CommitAsync();
  };
  SplitItem item = s.items[work];
  SeqSpan span = spans[item.span];
  int stage = 0;
  if (group == 1) copy(item, span, item.begin, stage);
  while (true) {
    work += static_cast<int>(gridDim.x);
    const bool more = work < num_items;
    const SplitItem next = more ? s.items[work] : item;
    const SeqSpan next_span = spans[next.span];
    const int tile_rows = TileRowsOf(s, span);
    const bool precise = tile_rows <= kMlaPreciseRows;

    __syncthreads();  // the last item's rows and weights have been read
    if (tid < kRows) {
      const int r = precise ? tid % kRests : tid;
      shared.rows[tid] = RowOfTile(span, item.tile * tile_rows + r, s.group, 0);
    }
    __syncthreads();
    if (aligned) {
      StoreQueryTile<T, 4>(p, shared.rows, tile_rows, precise, queries);
    } else {
      StoreQueryTile<T, 2>(p, shared.rows, tile_rows, precise, queries);
    }
    FenceForWgmma();

    // Of the first warpgroup: its rows of the scores. With rests, those of warps 0 and 1 are whole, 2 and 3 have none.
    const bool scores_whole = group == 0 && (!precise || warp < 2);
    const int row0 = warp * 16 + g;  // and row0 + 8
    int visible_begin[2], visible_end[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = shared.rows[row0 + 8 * r].position;
      visible_begin[r] = VisibleBegin(position, s.window);
      visible_end[r] = min(position + 1, item.end);
    }
    float m[2] = {-CUDART_INF_F, -CUDART_INF_F}, l[2] = {0, 0};
    float fold_m[2] = {-CUDART_INF_F, -CUDART_INF_F}, fold_l[2] = {0, 0};
    bool first_fold = true;
    float o[kSums];
#pragma unroll
    for (float& value : o) value = 0;

    for (int t0 = item.begin; t0 < item.end; t0 += kTokens, stage ^= 1) {
      const bool last = t0 + kTokens >= item.end;
      if (group == 1) {
        WaitAsync<0>();
        FenceForWgmma();
      }
      __syncthreads();  // this stage (and the queries) are there; the other stage and the weights have been read
      const uint32_t keys = SharedAddress(shared.stages[stage]);
      if (group == 1) {
        if (!last) {
          copy(item, span, t0 + kTokens, stage ^ 1);
        } else if (more) {
          copy(next, next_span, next.begin, stage ^ 1);
        }
        if (precise) MeetGroup(1), MeetGroup(1);
      } else {
        float score[kTokens / 2];
        WgmmaBegin();
#pragma unroll
        for (int kk = 0; kk < kKeyDim / 16; ++kk) {
          const uint32_t at = kk / 4 * kPanelTileBytes + kk % 4 * 32;
          Wgmma<T, kTokens, false>::Mma(score, ColumnsDescriptor(queries + at), ColumnsDescriptor(keys + at), kk > 0);
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
            for (int i = 0; i < kTokens / 2; ++i) score[i] = AddScoreRest(score[i], hand[i * 64 + tid]);
          }
          MeetGroup(0);  // the weights may lie where the rests of the scores did
        }
        if (scores_whole) {
          float largest[2] = {m[0], m[1]};
#pragma unroll
          for (int i = 0; i < kTokens / 2; ++i) {
            const int t = t0 + i / 4 * 8 + quad * 2 + i % 2, r = i / 2 % 2;
            if (t < visible_begin[r] || t >= visible_end[r]) score[i] = -CUDART_INF_F;
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
              const uint32_t rounded = Pack2(a, b, T{});
              StoreShared32(weights + Swizzled<kPanelBytes>(row, j) + quad * 4, rounded);
              if (precise) {
                StoreShared32(weights + Swizzled<kPanelBytes>(row + kRests, j) + quad * 4, PackRest2(a, b, rounded, T{}));
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
      __syncthreads();  // weights and factors are there

      const float factor[2] = {shared.factors[row0], shared.factors[row0 + 8]};
      if (__any_sync(kAllLanes, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) o[i] *= factor[i / 2 % 2];
      }
      WgmmaBegin();
#pragma unroll
      for (int kk = 0; kk < kTokens / 16; ++kk) {
        const uint32_t values = keys + group * (kColumns / kPanelValues) * kPanelTileBytes + kk * 16 * kPanelBytes;
        Wgmma<T, kColumns, true>::Mma(o, ColumnsDescriptor(weights + kk * 32), RowsDescriptor(values, kPanelTileBytes), true);
      }
      WgmmaCommit();
      WgmmaWait<0>(o);
      if (!last && !(kFold && (t0 + kTokens) % kFixedSplit == 0)) continue;

      // A softmax ends: sums of its weights, rests where they belong, and the fold with the ones before.
      if (scores_whole) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int row = row0 + 8 * r;
          l[r] += __shfl_xor_sync(kAllLanes, l[r], 1);
          l[r] += __shfl_xor_sync(kAllLanes, l[r], 2);
          if constexpr (kFold) {
            float a, b;
            FoldStats(&fold_m[r], &fold_l[r], m[r], l[r], &a, &b);
            if (quad == 0) shared.fold_a[row] = a, shared.fold_b[row] = b;
            m[r] = last ? fold_m[r] : -CUDART_INF_F;
            l[r] = last ? fold_l[r] : 0;
          }
          if (!last || quad != 0) continue;
          shared.sums[row] = l[r];
          if (item.partial >= 0 && shared.rows[row].position >= 0) {
            s.partial_stats[int64_t{item.partial} * s.partial_rows + row] = {m[r], l[r]};
          }
        }
      }
      __syncthreads();  // nobody reads the weights; the rows' numbers are there
      if (precise) AddRests(o, hand + group * 16 * 64, group);
      if constexpr (kFold) {
        if (warp < 2) {
          const float a[2] = {shared.fold_a[row0], shared.fold_a[row0 + 8]};
          const float b[2] = {shared.fold_b[row0], shared.fold_b[row0 + 8]};
#pragma unroll
          for (int i = 0; i < kSums; ++i) {
            if (i % 8 == 0) asm volatile("" ::: "memory");  // no more loads under way than there are registers
            const float before = first_fold ? 0.0f : folded[i * 64];
            const bool counts = b[i / 2 % 2] != 0.0f || a[i / 2 % 2] != 1.0f;
            const float value = counts ? FoldValue(before, a[i / 2 % 2], o[i], b[i / 2 % 2]) : before;
            if (last) {
              o[i] = value;
            } else {
              folded[i * 64] = value;
            }
          }
        }
        first_fold = false;
        if (!last) {
#pragma unroll
          for (float& value : o) value = 0;
        }
      }
    }

    if (!precise || warp < 2) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = row0 + 8 * r;
        const TileRow to_row = shared.rows[row];
        if (to_row.position < 0) continue;
        const int column = group * kColumns + quad * 2;
        if (item.partial >= 0) {
          float* to = s.partial_out + (int64_t{item.partial} * s.partial_rows + row) * kValueDim + column;
#pragma unroll
          for (int j = 0; j < kColumns / 8; ++j) {
            *reinterpret_cast<float2*>(to + j * 8) = {o[4 * j + 2 * r], o[4 * j + 2 * r + 1]};
          }
        } else {
          const float sum = shared.sums[row];
          float* to = p.out + to_row.row * p.out_token_stride + to_row.head * p.out_head_stride + column;
#pragma unroll
          for (int j = 0; j < kColumns / 8; ++j) {
            to[j * 8] = __fdiv_rn(o[4 * j + 2 * r], sum);
            to[j * 8 + 1] = __fdiv_rn(o[4 * j + 2 * r + 1], sum);
          }
        }
      }
    }
    if (!more) break;
    item = next;
    span = next_span;
  }
#endif
}

template <typename T, bool kFold>
CudaStatus Launch(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                  const AttentionParams& params) {
  auto* kernel = &MlaKernel<T, kFold>;
  if (CudaStatus failure = AllowSharedBytes(kernel, int64_t{sizeof(Shared)}, "attention MLA")) return failure;
  const auto grid = static_cast<unsigned>(schedule.max_items < exec.num_sms ? schedule.max_items : exec.num_sms);
  LaunchOverlapped<LaunchRole::kAttention>(kernel, grid, kThreads, int64_t{sizeof(Shared)}, exec.stream, params, batch.spans, schedule);
  return CudaLaunched("attention MLA of %d spans, %d heads", batch.num_spans, params.num_q_heads);
}

template <typename T>
CudaStatus LaunchType(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                      const AttentionParams& params) {
  return exec.deterministic ? Launch<T, true>(exec, batch, schedule, params)
                            : Launch<T, false>(exec, batch, schedule, params);
}

}  // namespace

bool MlaCovers(const AttentionParams& params) {
  const PagedKv& kv = params.kv;
  return HasVectorKv(kv) && kv.num_kv_heads == 1 && kv.k_dim == kKeyDim && kv.v_dim == kValueDim &&
         kv.v_offset == 0 && kv.v_token_stride == kKeyDim && CurrentCard().RunsHopperCode();
}

CudaStatus RunMlaAttention(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                           const AttentionParams& params) {
  return params.kv.dtype == DType::kF16 ? LaunchType<__half>(exec, batch, schedule, params)
                                        : LaunchType<__nv_bfloat16>(exec, batch, schedule, params);
}

}  // namespace cachalot
