// Ragged chunked prefill over a paged 16-bit cache that already holds the chunk: 64 rows (token, head of a group) a block,
// four warps of 16 rows, 64 tokens at a time in two stages (FlashAttention-2, Dao 2023, on mma.sync).
// Bound: tensor cores, 2 (k_dim + v_dim) flops for each visible pair of row and token. Tiles that see few tokens keep the
// rests of queries and weights too.
#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/tensor_core.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_split.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/attention_wide.cuh"
#include "kernels/common/paged_kv.cuh"

namespace cachalot {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kRows = kPrefillTileRows;
constexpr int kTokens = 64;

template <int kKeyDim, int kValueDim>
struct Geometry {
  static constexpr int kKeyBytes = kKeyDim * 2;
  static constexpr int kValueBytes = kValueDim * 2;
  static constexpr int kQBytes = kRows * kKeyBytes;
  static constexpr int kStageBytes = kTokens * (kKeyBytes + kValueBytes);
  static constexpr int kSharedBytes = kQBytes + 2 * kStageBytes;
};

// Warp w copies tokens 16 w .. 16 w + 15 of the stage, which lie in one block of the cache.
template <typename T, int kKeyDim, int kValueDim>
__device__ __forceinline__ void CopyStage(const PagedKv& kv, int slot, int kv_head, int t0, int low, int high,
                                          uint32_t stage) {
  using G = Geometry<kKeyDim, kValueDim>;
  constexpr int kKeyPieces = kKeyDim / 8, kValuePieces = kValueDim / 8;
  const int lane = threadIdx.x % 32, first = static_cast<int>(threadIdx.x) / 32 * 16, t = t0 + first;
  const bool any = t < high && t + 16 > low;
  const T* k = reinterpret_cast<const T*>(kv.data);  // a source is named even where nothing is read
  const T* v = k;
  if (any) {
    const T* block = reinterpret_cast<const T*>(BlockOf(kv, slot, t));
    const int64_t in_block = t % kv.block_tokens;
    k = block + kv_head * kv.k_head_stride + in_block * kKeyDim;
    v = block + kv.v_offset + kv_head * kv.v_head_stride + in_block * kValueDim;
  }
#pragma unroll
  for (int i = 0; i < 16 * kKeyPieces / 32; ++i) {
    const int at = lane + i * 32, row = at / kKeyPieces, piece = at % kKeyPieces;
    const bool valid = any && t + row >= low && t + row < high;
    CopyAsync16(stage + Swizzled<G::kKeyBytes>(first + row, piece), valid ? k + row * kKeyDim + piece * 8 : k, valid);
  }
  const uint32_t values = stage + kTokens * G::kKeyBytes;
#pragma unroll
  for (int i = 0; i < 16 * kValuePieces / 32; ++i) {
    const int at = lane + i * 32, row = at / kValuePieces, piece = at % kValuePieces;
    const bool valid = any && t + row >= low && t + row < high;
    CopyAsync16(values + Swizzled<G::kValueBytes>(first + row, piece), valid ? v + row * kValueDim + piece * 8 : v,
                valid);
  }
}

template <typename T, int kKeyDim, int kValueDim>
__global__ __launch_bounds__(kThreads, 2) void PrefillKernel(AttentionParams p, const SeqSpan* spans,
                                                             AttentionSchedule s, const PrefillItem* items,
                                                             const int32_t* num_items) {
  using G = Geometry<kKeyDim, kValueDim>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ TileRow rows[kRows];
  if (static_cast<int>(blockIdx.x) >= *num_items) return;
  const PrefillItem item = items[blockIdx.x];
  const int kv_head = static_cast<int>(blockIdx.y);
  const SeqSpan span = spans[item.span];
  const TileRange range = RangeOfTile(span, item.tile, kRows, s.group, s.window);
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, quad = lane % 4;
  const uint32_t q_shared = SharedAddress(shared);
  const uint32_t stages = q_shared + G::kQBytes;
  const int begin = range.begin / kTokens * kTokens;
  const int num_rounds = (range.end - begin + kTokens - 1) / kTokens;

  CopyStage<T, kKeyDim, kValueDim>(p.kv, span.slot, kv_head, begin, range.begin, range.end, stages);
  CommitAsync();
  if (tid < kRows) rows[tid] = RowOfTile(span, item.tile * kRows + tid, s.group, kv_head);
  __syncthreads();
  StoreQueries<T, kRows, kKeyDim, kThreads, true, false>(p, rows, q_shared, q_shared);
  __syncthreads();
  uint32_t q[kKeyDim / 16][4];
#pragma unroll
  for (int kk = 0; kk < kKeyDim / 16; ++kk) {
    LoadMatrix4(q[kk], q_shared + Swizzled<G::kKeyBytes>(warp * 16 + (lane & 15), kk * 2 + (lane >> 4)));
  }
  const bool precise = range.end - range.begin <= kPreciseTokens;
  if (precise) {  // the rests take the place of the queries, which are in registers now
    __syncthreads();
    StoreQueries<T, kRows, kKeyDim, kThreads, false, true>(p, rows, q_shared, q_shared);
  }
  TileRow row[2];
  int visible_begin[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    row[r] = rows[warp * 16 + lane / 4 + 8 * r];
    visible_begin[r] = VisibleBegin(row[r].position, s.window);
  }

  float o[kValueDim / 8][4];
#pragma unroll
  for (int n = 0; n < kValueDim / 8; ++n) {
#pragma unroll
    for (int c = 0; c < 4; ++c) o[n][c] = 0;
  }
  float m[2] = {-CUDART_INF_F, -CUDART_INF_F}, l[2] = {0, 0};

  for (int round = 0; round < num_rounds; ++round) {
    const int t0 = begin + round * kTokens;
    const uint32_t keys = stages + round % 2 * G::kStageBytes, values = keys + kTokens * G::kKeyBytes;
    WaitAsync<0>();
    __syncthreads();  // this stage is there, the other one has been read
    if (round + 1 < num_rounds) {
      CopyStage<T, kKeyDim, kValueDim>(p.kv, span.slot, kv_head, t0 + kTokens, range.begin, range.end,
                                       stages + (round + 1) % 2 * G::kStageBytes);
      CommitAsync();
    }
    float score[kTokens / 8][4];
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) score[n][c] = 0;
    }
#pragma unroll
    for (int kk = 0; kk < kKeyDim / 16; ++kk) {
#pragma unroll
      for (int n = 0; n < kTokens / 16; ++n) {
        uint32_t k[4];
        LoadMatrix4(k, keys + Swizzled<G::kKeyBytes>(n * 16 + (lane & 7) + ((lane >> 4) << 3),
                                                     kk * 2 + ((lane >> 3) & 1)));
        Mma(score[2 * n], q[kk], k[0], k[1], T{});
        Mma(score[2 * n + 1], q[kk], k[2], k[3], T{});
      }
    }
    if (precise) {
      float rest[kTokens / 8][4] = {};
#pragma unroll 2
      for (int kk = 0; kk < kKeyDim / 16; ++kk) {
        uint32_t q_rest[4];
        LoadMatrix4(q_rest, q_shared + Swizzled<G::kKeyBytes>(warp * 16 + (lane & 15), kk * 2 + (lane >> 4)));
#pragma unroll
        for (int n = 0; n < kTokens / 16; ++n) {
          uint32_t k[4];
          LoadMatrix4(k, keys + Swizzled<G::kKeyBytes>(n * 16 + (lane & 7) + ((lane >> 4) << 3),
                                                       kk * 2 + ((lane >> 3) & 1)));
          Mma(rest[2 * n], q_rest, k[0], k[1], T{});
          Mma(rest[2 * n + 1], q_rest, k[2], k[3], T{});
        }
      }
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) score[n][c] = AddScoreRest(score[n][c], rest[n][c]);
      }
    }
    float largest[2] = {m[0], m[1]};
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int t = t0 + n * 8 + quad * 2 + (c & 1);
        if (t < visible_begin[c / 2] || t > row[c / 2].position) score[n][c] = -CUDART_INF_F;
        largest[c / 2] = fmaxf(largest[c / 2], score[n][c]);
      }
    }
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 1));
      largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 2));
      const bool none = largest[r] == -CUDART_INF_F;
      factor[r] = none ? 1.0f : exp2f(m[r] - largest[r]);
      m[r] = largest[r];
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
        for (int c = 2 * r; c < 2 * r + 2; ++c) {
          score[n][c] = none ? 0.0f : exp2f(score[n][c] - largest[r]);
          sum += score[n][c];
        }
      }
      l[r] = l[r] * factor[r] + sum;
    }
#pragma unroll
    for (int n = 0; n < kValueDim / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) o[n][c] *= factor[c / 2];
    }
#pragma unroll
    for (int kk = 0; kk < kTokens / 16; ++kk) {
      const uint32_t w[4] = {Pack2(score[2 * kk][0], score[2 * kk][1], T{}), Pack2(score[2 * kk][2], score[2 * kk][3], T{}),
                             Pack2(score[2 * kk + 1][0], score[2 * kk + 1][1], T{}),
                             Pack2(score[2 * kk + 1][2], score[2 * kk + 1][3], T{})};
      uint32_t w_rest[4];
      if (precise) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          w_rest[i] = PackRest2(score[2 * kk + i / 2][i % 2 * 2], score[2 * kk + i / 2][i % 2 * 2 + 1], w[i], T{});
        }
      }
#pragma unroll
      for (int d = 0; d < kValueDim / 16; ++d) {
        uint32_t v[4];
        LoadMatrix4Transposed(v, values + Swizzled<G::kValueBytes>(kk * 16 + (lane & 15), d * 2 + (lane >> 4)));
        Mma(o[2 * d], w, v[0], v[1], T{});
        Mma(o[2 * d + 1], w, v[2], v[3], T{});
        if (precise) {
          Mma(o[2 * d], w_rest, v[0], v[1], T{});
          Mma(o[2 * d + 1], w_rest, v[2], v[3], T{});
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    l[r] += __shfl_xor_sync(kAllLanes, l[r], 1);
    l[r] += __shfl_xor_sync(kAllLanes, l[r], 2);
    if (row[r].position < 0) continue;
    const float inverse = __fdiv_rn(1.0f, l[r]);
    float* to = p.out + row[r].row * p.out_token_stride + row[r].head * p.out_head_stride + quad * 2;
    uint16_t* half = HalfPairAt<kValueDim>(p, row[r], quad);
#pragma unroll
    for (int n = 0; n < kValueDim / 8; ++n) {
      const float2 pair = {o[n][2 * r] * inverse, o[n][2 * r + 1] * inverse};
      to[n * 8] = pair.x;
      to[n * 8 + 1] = pair.y;
      if (half != nullptr) *reinterpret_cast<uint32_t*>(half + n * 8) = ClampedHalf2(pair.x, pair.y);
    }
  }
}

template <typename T, int kKeyDim, int kValueDim>
CudaStatus Launch(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                  const AttentionParams& params, const WideSchedule* wide) {
  using G = Geometry<kKeyDim, kValueDim>;
  auto* kernel = &PrefillKernel<T, kKeyDim, kValueDim>;
  static_assert(G::kSharedBytes + 4096 <= kCudaLeastSharedBytes);
  if (CudaStatus failure = AllowSharedBytes(kernel, G::kSharedBytes, "attention prefill")) return failure;
  const PrefillItem* items = wide != nullptr ? wide->narrow : schedule.prefill;
  const int32_t* num_items = wide != nullptr ? &wide->counts->num_narrow : &schedule.counts->num_prefill_items;
  const dim3 grid(static_cast<unsigned>(wide != nullptr ? wide->max_narrow : schedule.max_prefill), static_cast<unsigned>(params.kv.num_kv_heads));
  kernel<<<grid, kThreads, G::kSharedBytes, static_cast<cudaStream_t>(exec.stream)>>>(params, batch.spans, schedule, items, num_items);
  return CudaLaunched("attention prefill of %d rows, %d/%d heads of %d/%d", batch.num_rows, params.num_q_heads,
                      params.kv.num_kv_heads, kKeyDim, kValueDim);
}

template <typename T>
CudaStatus LaunchDim(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                     const AttentionParams& params, const WideSchedule* wide) {
  switch (params.kv.k_dim) {
    case 64:
      return Launch<T, 64, 64>(exec, batch, schedule, params, wide);
    case 128:
      return Launch<T, 128, 128>(exec, batch, schedule, params, wide);
    default:
      return Launch<T, 192, 128>(exec, batch, schedule, params, wide);
  }
}

}  // namespace

bool PrefillCovers(const AttentionParams& params) {
  const PagedKv& kv = params.kv;
  return HasVectorKv(kv) && kv.v_token_stride == kv.v_dim &&
         ((kv.k_dim == 64 && kv.v_dim == 64) || (kv.k_dim == 128 && kv.v_dim == 128) ||
          (kv.k_dim == 192 && kv.v_dim == 128));
}

CudaStatus RunPrefillAttention(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                               const AttentionParams& params) {
  const WideSchedule wide = MakeWideSchedule(schedule, batch);
  const bool is_wide = CurrentTune().prefill == CudaTune::Prefill::kWgmma && WidePrefillCovers(params);
  const WideSchedule* with = is_wide ? &wide : nullptr;
  CudaStatus failure = params.kv.dtype == DType::kF16 ? LaunchDim<__half>(exec, batch, schedule, params, with)
                                                      : LaunchDim<__nv_bfloat16>(exec, batch, schedule, params, with);
  return failure == nullptr && is_wide ? RunWidePrefill(exec, batch, schedule, wide, params) : failure;
}

}  // namespace cachalot
