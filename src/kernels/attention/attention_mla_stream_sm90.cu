// Absorbed MLA over a paged 16-bit latent cache (attention_mla_sm90.cu), as one stream of bytes a block: the work is laid out
// as in attention_stream.cuh, the last warpgroup copies 64 tokens at a time, the first one makes their scores and weights while
// the two between sum the values of the 64 tokens before, 256 columns each.
//
// A tile is 64 rows of the tensor cores: 64 rows (token, head), or 32 rows with their rests (attention_tile.cuh), row
// 8 w + g of them at 16 w + g and its rest at 16 w + 8 + g: the same thread has the accumulators of both.
// Bound: 1152 bytes a token and sequence up to about 64 heads, tensor cores above. What earlier steps wrote is copied before the
// kernels in front have ended, as in attention_stream_sm90.cu.
#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_barrier.cuh"
#include "kernels/attention/attention_prefetch.cuh"
#include "kernels/attention/attention_split.cuh"
#include "kernels/attention/attention_stream.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/attention_wgmma.cuh"
#include "kernels/common/paged_kv.cuh"

namespace cachalot {
namespace {

constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kThreads = 4 * kGroup;
constexpr int kRows = kMlaTileRows;
constexpr int kKeyDim = 576;
constexpr int kValueDim = 512;
constexpr int kPanels = kKeyDim / kPanelValues;
constexpr int kTokens = 64;
constexpr int kRunsAStage = kTokens / kRun;
constexpr int kPanelTileBytes = kTokens * kPanelBytes;
constexpr int kTileBytes = kPanels * kPanelTileBytes;  // queries, and a stage
constexpr int kStages = 2;
constexpr int kColumns = kValueDim / 2;  // of a warpgroup
constexpr int kHalf = kColumns / 2;      // of a product: one of all columns would need more registers than a thread starts with
constexpr int kSums = kHalf / 2;         // of a thread, of a half
static_assert(kTokens == kSplitAlign && kRows == kTokens);

// All of the block's shared memory; tiles are aligned to 1024 bytes, as the block's memory is.
struct Shared {
  unsigned char queries[kTileBytes];
  unsigned char stages[kStages][kTileBytes];
  unsigned char weights[kRows * kTokens * 2];
  float factors[kRows];
  float sums[kRows];  // of weights
  uint64_t full[kStages], empty[kStages];
  uint64_t weighed, summed;  // weights are there; have been read
};
static_assert(sizeof(Shared) <= 227 * 1024);

__device__ __forceinline__ void ScorersMeet() { asm volatile("bar.sync 1, %0;\n" ::"n"(kGroup) : "memory"); }

__device__ __forceinline__ int FirstStageRun(const Piece& piece) { return piece.first_run / kRunsAStage * kRunsAStage; }
__device__ __forceinline__ int StagesOf(const Piece& piece) {
  return (piece.first_run + piece.runs - FirstStageRun(piece) + kRunsAStage - 1) / kRunsAStage;
}

// The last warpgroup: warp w copies tokens 16 w .. 16 w + 15 of each stage, which lie in one block of the cache. Positions
// outside a piece become zeros.
template <typename T>
__device__ __forceinline__ void CopyShare(const PagedKv& kv, Walk walk, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % kGroup / 32;
  bool waited = false;
  int count = 0;  // stages
  Piece piece;
  while (walk.Next(&piece)) {
    const int stages = StagesOf(piece), old_end = piece.seq.kv_len - piece.seq.q_len;
    for (int i = 0; i < stages; ++i, ++count) {
      const int first = FirstStageRun(piece) * kRun + i * kTokens, t0 = first + warp * kRun, stage = count % kStages;
      const bool any = t0 < piece.end && t0 + kRun > piece.begin;
      const T* from = reinterpret_cast<const T*>(kv.data);  // a source is named even where nothing is read
      if (any) from = reinterpret_cast<const T*>(BlockOf(kv, piece.seq.slot, t0)) + int64_t{t0 % kv.block_tokens} * kKeyDim;
      if (!waited && min(first + kTokens, piece.end) > old_end) {
        WaitForEarlierKernels();
        waited = true;
      }
      WaitBarrier(SharedAddress(&shared.empty[stage]), static_cast<uint32_t>(count / kStages & 1) ^ 1);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int row = lane / 8 + 4 * step, piece_of_panel = lane % 8;
        const bool valid = any && t0 + row >= piece.begin && t0 + row < piece.end;
        const T* source = (valid ? from + row * kKeyDim : from) + piece_of_panel * 8;
        const uint32_t to = SharedAddress(shared.stages[stage]) + Swizzled<kPanelBytes>(warp * kRun + row, piece_of_panel);
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) CopyAsync16(to + panel * kPanelTileBytes, source + panel * kPanelValues, valid);
      }
      ArriveWhenCopied(SharedAddress(&shared.full[stage]));
    }
  }
}

// The row of the tile behind row 16 warp + g + 8 r of the tensor cores; -1: a rest.
__device__ __forceinline__ int TileRowAt(bool precise, int warp, int g, int r) {
  if (!precise) return warp * 16 + g + 8 * r;
  return r == 0 ? warp * 8 + g : -1;
}

// Four values of a query at a time become bytes of the tile, scaled for softmax in base 2; the first warpgroup. Rows that do not
// exist become zeros.
template <typename T>
__device__ __forceinline__ void StoreQueryTile(const AttentionParams& p, const AttentionSchedule& s, const Piece& piece, int tile_rows,
                                               bool precise, uint32_t queries) {
  constexpr int kUnits = kKeyDim / 4;  // of a row
  constexpr int kBatch = 9;            // loads under way at a time
  const float scale = p.scale * kLog2E;
  const bool aligned = p.q_token_stride % 4 == 0 && p.q_head_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.q) % 16 == 0;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first < tile_rows * kUnits; first += kBatch * kGroup) {
    float4 q[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + i * kGroup;
      q[i] = {0, 0, 0, 0};
      if (at >= tile_rows * kUnits) continue;
      const TileRow row = RowOfTile(piece.seq, piece.tile * tile_rows + at / kUnits, s.group, 0);
      if (row.position < 0) continue;
      const float* from = p.q + row.row * p.q_token_stride + row.head * p.q_head_stride + at % kUnits * 4;
      q[i] = aligned ? *reinterpret_cast<const float4*>(from) : float4{from[0], from[1], from[2], from[3]};
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + i * kGroup;
      if (at >= tile_rows * kUnits) continue;
      const int row = at / kUnits, column = at % kUnits * 4, high = precise ? row / 8 * 16 + row % 8 : row;
      const uint32_t panel = queries + column / kPanelValues * kPanelTileBytes, in_piece = column % 8 * 2;
      const int from_panel = column % kPanelValues / 8;
      const float a = q[i].x * scale, b = q[i].y * scale, c = q[i].z * scale, d = q[i].w * scale;
      const uint32_t ab = Pack2(a, b, T{}), cd = Pack2(c, d, T{});
      const uint32_t to = panel + Swizzled<kPanelBytes>(high, from_panel) + in_piece;
      StoreShared32(to, ab);
      StoreShared32(to + 4, cd);
      if (!precise) continue;
      const uint32_t rest = panel + Swizzled<kPanelBytes>(high + 8, from_panel) + in_piece;
      StoreShared32(rest, PackRest2(a, b, ab, T{}));
      StoreShared32(rest + 4, PackRest2(c, d, cd, T{}));
    }
  }
}

// The first warpgroup: scores and weights.
template <typename T>
__device__ __forceinline__ void ScoreShare(const AttentionParams& p, const AttentionSchedule& s, Walk walk, Shared& shared) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, g = lane / 4, quad = lane % 4;
  const int row0 = warp * 16 + g;  // and row0 + 8
  const uint32_t queries = SharedAddress(shared.queries), weights = SharedAddress(shared.weights);
  int count = 0;  // stages
  Piece piece;
  WaitForEarlierKernels();
  while (walk.Next(&piece)) {
    const int tile_rows = TileRowsOf(s, piece.seq);
    const bool precise = tile_rows <= kMlaPreciseRows;
    ScorersMeet();  // the last piece's queries have been read
    StoreQueryTile<T>(p, s, piece, tile_rows, precise, queries);
    FenceForWgmma();
    ScorersMeet();
    int visible_begin[2], visible_end[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = TileRowAt(precise, warp, g, r);
      const int position = at < 0 ? -1 : RowOfTile(piece.seq, piece.tile * tile_rows + at, s.group, 0).position;
      visible_begin[r] = VisibleBegin(position, s.window);
      visible_end[r] = position + 1;
    }
    float m[2] = {-CUDART_INF_F, -CUDART_INF_F}, l[2] = {0, 0};
    const int stages = StagesOf(piece);
    int t0 = FirstStageRun(piece) * kRun;
    for (int i = 0; i < stages; ++i, ++count, t0 += kTokens) {
      const int stage = count % kStages;
      const uint32_t keys = SharedAddress(shared.stages[stage]);
      WaitBarrier(SharedAddress(&shared.full[stage]), static_cast<uint32_t>(count / kStages) & 1);
      FenceForWgmma();  // what was copied may be read
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
#pragma unroll
        for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
          for (int c = 0; c < 2; ++c) score[4 * j + c] = AddScoreRest(score[4 * j + c], score[4 * j + 2 + c]);
        }
      }
      float factor[2] = {1, 1};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (r == 1 && precise) break;
        float largest = m[r];
#pragma unroll
        for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int t = t0 + j * 8 + quad * 2 + c;
            float& value = score[4 * j + 2 * r + c];
            if (t < visible_begin[r] || t >= visible_end[r]) value = -CUDART_INF_F;
            largest = fmaxf(largest, value);
          }
        }
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
        const bool none = largest == -CUDART_INF_F;
        factor[r] = none ? 1.0f : exp2f(m[r] - largest);
        m[r] = largest;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            float& value = score[4 * j + 2 * r + c];
            value = none ? 0.0f : exp2f(value - largest);
            sum += value;
          }
        }
        l[r] = __fmaf_rn(l[r], factor[r], sum);
      }
      WaitBarrier(SharedAddress(&shared.summed), static_cast<uint32_t>(count & 1) ^ 1);  // the weights before have been read
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j) {
        const uint32_t high = Pack2(score[4 * j], score[4 * j + 1], T{});
        const uint32_t other = precise ? PackRest2(score[4 * j], score[4 * j + 1], high, T{}) : Pack2(score[4 * j + 2], score[4 * j + 3], T{});
        StoreShared32(weights + Swizzled<kPanelBytes>(row0, j) + quad * 4, high);
        StoreShared32(weights + Swizzled<kPanelBytes>(row0 + 8, j) + quad * 4, other);
      }
      if (quad == 0) {
        shared.factors[row0] = factor[0];
        shared.factors[row0 + 8] = precise ? factor[0] : factor[1];
      }
      if (i + 1 == stages) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          l[r] += __shfl_xor_sync(kAllLanes, l[r], 1);
          l[r] += __shfl_xor_sync(kAllLanes, l[r], 2);
          const int at = TileRowAt(precise, warp, g, r);
          if (quad != 0 || at < 0) continue;
          shared.sums[row0 + 8 * r] = l[r];
          if (!piece.whole && visible_end[r] > 0) {
            const int64_t partial = 2 * int64_t{blockIdx.x} + (piece.continues ? 0 : 1);
            s.partial_stats[partial * s.partial_rows + at] = {m[r], l[r]};
          }
        }
      }
      FenceForWgmma();
      Arrive(SharedAddress(&shared.weighed));
    }
  }
}

// The second and third warpgroup: weights times values, columns 256 group .. 256 group + 255.
template <typename T>
__device__ __forceinline__ void SumShare(const AttentionParams& p, const AttentionSchedule& s, Walk walk, Shared& shared, int group) {
  const int tid = static_cast<int>(threadIdx.x) % kGroup, lane = tid % 32, warp = tid / 32, g = lane / 4, quad = lane % 4;
  const int row0 = warp * 16 + g;  // and row0 + 8
  const uint32_t weights = SharedAddress(shared.weights);
  int count = 0;  // stages
  Piece piece;
  WaitForEarlierKernels();
  while (walk.Next(&piece)) {
    float o[2][kSums];
#pragma unroll
    for (auto& half : o) {
#pragma unroll
      for (float& value : half) value = 0;
    }
    float sum[2] = {0, 0};
    const int stages = StagesOf(piece);
    for (int i = 0; i < stages; ++i, ++count) {
      const int stage = count % kStages;
      WaitBarrier(SharedAddress(&shared.full[stage]), static_cast<uint32_t>(count / kStages) & 1);
      WaitBarrier(SharedAddress(&shared.weighed), static_cast<uint32_t>(count) & 1);
      FenceForWgmma();  // what was copied may be read
      const float factor[2] = {shared.factors[row0], shared.factors[row0 + 8]};
      if (__any_sync(kAllLanes, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
        for (auto& half : o) {
#pragma unroll
          for (int j = 0; j < kSums; ++j) half[j] *= factor[j / 2 % 2];
        }
      }
      const uint32_t values = SharedAddress(shared.stages[stage]) + group * (kColumns / kPanelValues) * kPanelTileBytes;
      WgmmaBegin();
#pragma unroll
      for (int kk = 0; kk < kTokens / 16; ++kk) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t from = values + half * (kHalf / kPanelValues) * kPanelTileBytes + kk * 16 * kPanelBytes;
          Wgmma<T, kHalf, true>::Mma(o[half], ColumnsDescriptor(weights + kk * 32), RowsDescriptor(from, kPanelTileBytes), true);
        }
      }
      WgmmaCommit();
      WgmmaWait<0>(o[0]);
      WgmmaWait<0>(o[1]);
      sum[0] = shared.sums[row0];
      sum[1] = shared.sums[row0 + 8];
      __syncwarp();
      if (lane == 0) {
        Arrive(SharedAddress(&shared.empty[stage]));
        Arrive(SharedAddress(&shared.summed));
      }
    }
    const int tile_rows = TileRowsOf(s, piece.seq), column = group * kColumns + quad * 2;
    const bool precise = tile_rows <= kMlaPreciseRows;
    const int64_t partial = 2 * int64_t{blockIdx.x} + (piece.continues ? 0 : 1);
    if (precise) {
#pragma unroll
      for (auto& half : o) {
#pragma unroll
        for (int j = 0; j < kSums; j += 4) {
          half[j] += half[j + 2];
          half[j + 1] += half[j + 3];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = TileRowAt(precise, warp, g, r);
      if (at < 0) break;
      const TileRow row = RowOfTile(piece.seq, piece.tile * tile_rows + at, s.group, 0);
      if (row.position < 0) continue;
      if (piece.whole) {
        float* to = p.out + row.row * p.out_token_stride + row.head * p.out_head_stride + column;
#pragma unroll
        for (int j = 0; j < kColumns / 8; ++j) {
          to[j * 8] = __fdiv_rn(o[4 * j / kSums][4 * j % kSums + 2 * r], sum[r]);
          to[j * 8 + 1] = __fdiv_rn(o[4 * j / kSums][4 * j % kSums + 2 * r + 1], sum[r]);
        }
      } else {
        float* to = s.partial_out + (partial * s.partial_rows + at) * kValueDim + column;
#pragma unroll
        for (int j = 0; j < kColumns / 8; ++j) {
          *reinterpret_cast<float2*>(to + j * 8) = {o[4 * j / kSums][4 * j % kSums + 2 * r], o[4 * j / kSums][4 * j % kSums + 2 * r + 1]};
        }
      }
    }
  }
}

template <typename T>
__global__ __launch_bounds__(kThreads, 1) void MlaStreamKernel(const __grid_constant__ AttentionParams p, const SeqSpan* spans,
                                                               const __grid_constant__ AttentionSchedule s) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int group = static_cast<int>(threadIdx.x) / kGroup;
  LetNextKernelStart();
  if (threadIdx.x == 3 * kGroup) {
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(SharedAddress(&shared.full[i]), kGroup);
      InitBarrier(SharedAddress(&shared.empty[i]), 2 * kGroup / 32);
    }
    InitBarrier(SharedAddress(&shared.weighed), kGroup);
    InitBarrier(SharedAddress(&shared.summed), 2 * kGroup / 32);
  }
  PrefetchUpcoming(p);
  __syncthreads();
  if (group == 3) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;\n");
    CopyShare<T>(p.kv, Walk(s, spans), shared);
  } else if (group == 0) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 136;\n");
    ScoreShare<T>(p, s, Walk(s, spans), shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 160;\n");
    SumShare<T>(p, s, Walk(s, spans), shared, group - 1);
  }
#endif
}

template <typename T>
CudaStatus Launch(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                  const AttentionParams& params) {
  auto* kernel = &MlaStreamKernel<T>;
  if (CudaStatus failure = AllowSharedBytes(kernel, int64_t{sizeof(Shared)}, "attention MLA stream")) return failure;
  LaunchOverlapped<LaunchRole::kAttention>(kernel, schedule.stream_blocks, kThreads, int64_t{sizeof(Shared)}, exec.stream, params,
                                           batch.spans, schedule);
  return CudaLaunched("attention MLA stream of %d spans, %d heads", batch.num_spans, params.num_q_heads);
}

}  // namespace

bool MlaStreamCovers(const CudaExec& exec, const AttentionSchedule& schedule, const AttentionParams& params) {
  constexpr auto kUsual = CudaTune::Attention::kRounds;
  const auto wanted = CurrentTune().attention == CudaTune::Attention::kUsual ? kUsual : CurrentTune().attention;
  return wanted == CudaTune::Attention::kStream && schedule.stream_blocks > 0 && !exec.deterministic;
}

CudaStatus RunMlaStreamAttention(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                                 const AttentionParams& params) {
  return params.kv.dtype == DType::kF16 ? Launch<__half>(exec, batch, schedule, params)
                                        : Launch<__nv_bfloat16>(exec, batch, schedule, params);
}

}  // namespace cachalot
