// Absorbed MLA over a paged 16-bit latent cache (keys of 576, the value is their first 512): every head shares the keys.
//
// A tile is 16, 32 or 64 rows (token, head); a block of eight warps takes 64 tokens at a time into shared memory (two
// stages), once, for scores and for values. Scores: warps share out m-tiles and tokens; values: each warp owns 64 of the 512
// columns for all rows. Sums of weights come from one more column of ones on the tensor cores, so a row's bits do not depend
// on how many rows share its tile. Queries and weights go through the tensor cores twice, rounded and rest: always where
// memory is the bound (one m-tile) and in deterministic mode, else where a tile sees few tokens.
// Bound: 1152 bytes a token and sequence up to about 64 heads, tensor cores above.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/tensor_core.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_split.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/common/paged_kv.cuh"

namespace cachalot {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kKeyDim = 576;
constexpr int kValueDim = 512;
constexpr int kTokens = 64;                        // of a stage
constexpr int kRowBytes = kKeyDim * 2;
constexpr int kPieces = kKeyDim / 8;
constexpr int kStageBytes = kTokens * kRowBytes;
constexpr int kWeightBytes = kTokens * 2;          // of a row of weights
constexpr int kColumns = kValueDim / kWarps;       // of a warp

// kM: m-tiles of 16 rows.
template <int kM>
struct Geometry {
  static constexpr int kRows = 16 * kM;
  static constexpr int kSlices = kWarps / kM;      // warps that share an m-tile's tokens
  static constexpr int kN = kTokens / kSlices / 8; // n-tiles of 8 tokens of a warp
  static constexpr int kQBytes = kRows * kRowBytes;
  // The rests have memory of their own up to two m-tiles. With four, the queries' lie in the second stage (such a tile sees
  // few tokens, and takes them one stage at a time) and the weights' take turns with the weights.
  static constexpr bool kRoom = kM <= 2;
  static constexpr int kWeightsBytes = kRows * kWeightBytes;
  static constexpr int kSharedBytes = (kRoom ? 2 : 1) * (kQBytes + kWeightsBytes) + 2 * kStageBytes;
  static_assert(kRoom || kQBytes <= kStageBytes);
};

__device__ __forceinline__ uint32_t Ones(__half) { return 0x3c003c00u; }
__device__ __forceinline__ uint32_t Ones(__nv_bfloat16) { return 0x3f803f80u; }

// Warp w copies tokens 8 w .. 8 w + 7 of the stage, which lie in one block of the cache.
template <typename T>
__device__ __forceinline__ void CopyStage(const PagedKv& kv, int slot, int t0, int low, int high, uint32_t stage) {
  const int lane = threadIdx.x % 32, first = static_cast<int>(threadIdx.x) / 32 * 8, t = t0 + first;
  const bool any = t < high && t + 8 > low;
  const T* from = nullptr;
  if (any) from = reinterpret_cast<const T*>(BlockOf(kv, slot, t)) + int64_t{t % kv.block_tokens} * kKeyDim;
#pragma unroll
  for (int i = 0; i < 8 * kPieces / 32; ++i) {
    const int at = lane + i * 32, row = at / kPieces, piece = at % kPieces;
    const bool valid = any && t + row >= low && t + row < high;
    // A source is named even where nothing is read.
    const void* source = valid ? static_cast<const void*>(from + row * kKeyDim + piece * 8) : kv.data;
    CopyAsync16(stage + Swizzled<kRowBytes>(first + row, piece), source, valid);
  }
}

// Softmax numerators of one block's tile: this thread holds rows 16 i + g (+ 8), columns of its warp.
template <int kM>
struct State {
  float o[kM][kColumns / 8][4];
  float l[kM][4];  // [0] and [2] are the sums of rows g and g + 8
  float m[kM][2];

  __device__ void Clear() {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) o[i][n][c] = 0;
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) l[i][c] = 0;
      m[i][0] = m[i][1] = -CUDART_INF_F;
    }
  }
};

template <typename T, int kM, bool kFold>
__global__ __launch_bounds__(kThreads, 1) void MlaKernel(AttentionParams p, const SeqSpan* spans, AttentionSchedule s) {
  using G = Geometry<kM>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float slice_max[G::kSlices][G::kRows];
  __shared__ TileRow rows[G::kRows];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const int g = lane / 4, quad = lane % 4;
  const int m_tile = warp / G::kSlices, slice = warp % G::kSlices;  // of the scores
  const uint32_t q_shared = SharedAddress(shared);
  const uint32_t stages = q_shared + (G::kRoom ? 2 : 1) * G::kQBytes;
  const uint32_t weights = stages + 2 * kStageBytes;
  const uint32_t q_rest = G::kRoom ? q_shared + G::kQBytes : stages + kStageBytes;
  const uint32_t weights_rest = weights + (G::kRoom ? G::kWeightsBytes : 0);

  for (int work = static_cast<int>(blockIdx.x); work < s.counts->num_items; work += static_cast<int>(gridDim.x)) {
    const SplitItem item = s.items[work];
    const SeqSpan span = spans[item.span];
    const TileRange range = RangeOfTile(span, item.tile, G::kRows, s.group, s.window);
    const int low = range.begin, high = min(range.end, item.end);
    const bool precise = kM == 1 || kFold || range.end - range.begin <= kPreciseTokens;
    const bool two_stages = G::kRoom || !precise;

    __syncthreads();  // the last item's rows, queries and stages have been read
    CopyStage<T>(p.kv, span.slot, item.begin, low, high, stages);
    CommitAsync();
    if (tid < G::kRows) rows[tid] = RowOfTile(span, item.tile * G::kRows + tid, s.group, 0);
    __syncthreads();
    if (precise) {
      StoreQueries<T, G::kRows, kKeyDim, kThreads, true, true>(p, rows, q_shared, q_rest);
    } else {
      StoreQueries<T, G::kRows, kKeyDim, kThreads, true, false>(p, rows, q_shared, q_rest);
    }
    int visible_begin[2], visible_end[2];  // of this thread's rows of the scores
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = rows[m_tile * 16 + g + 8 * r].position;
      visible_begin[r] = VisibleBegin(position, s.window);
      visible_end[r] = min(position + 1, item.end);
    }

    State<kM> state;
    state.Clear();
    float score_m[2] = {-CUDART_INF_F, -CUDART_INF_F};  // state.m of the scores' rows
    State<kFold ? kM : 1> folded;                       // l in l[i][0] and l[i][2]
    if constexpr (kFold) folded.Clear();

    const int num_rounds = (item.end - item.begin + kTokens - 1) / kTokens;
    for (int round = 0; round < num_rounds; ++round) {
      const int t0 = item.begin + round * kTokens;
      const uint32_t stage = stages + (two_stages ? round % 2 * kStageBytes : 0);
      if (!two_stages && round > 0) {
        __syncthreads();  // the stage has been read
        CopyStage<T>(p.kv, span.slot, t0, low, high, stage);
        CommitAsync();
      }
      WaitAsync<0>();
      __syncthreads();  // this stage is there; the other one and the weights have been read
      if (two_stages && round + 1 < num_rounds) {
        CopyStage<T>(p.kv, span.slot, t0 + kTokens, low, high, stages + (round + 1) % 2 * kStageBytes);
        CommitAsync();
      }

      // Scores of m_tile against tokens [slice * 8 kN, ...): two chains of sums over even and odd steps.
      float score[G::kN][4];
      {
        float even[G::kN][4] = {}, odd[G::kN][4] = {}, rest[G::kN][4] = {};
        const int first = slice * 8 * G::kN;
#pragma unroll 2
        for (int kk = 0; kk < kKeyDim / 32; ++kk) {
          uint32_t q[2][4], q_low[2][4];
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const uint32_t at = Swizzled<kRowBytes>(m_tile * 16 + (lane & 15), kk * 4 + h * 2 + (lane >> 4));
            LoadMatrix4(q[h], q_shared + at);
            if (precise) LoadMatrix4(q_low[h], q_rest + at);
          }
#pragma unroll
          for (int n = 0; n < G::kN; ++n) {
            uint32_t k[4];  // 8 tokens, 32 values
            LoadMatrix4(k, stage + Swizzled<kRowBytes>(first + n * 8 + (lane & 7), kk * 4 + (lane >> 3)));
            Mma(even[n], q[0], k[0], k[1], T{});
            Mma(odd[n], q[1], k[2], k[3], T{});
            if (precise) {
              Mma(rest[n], q_low[0], k[0], k[1], T{});
              Mma(rest[n], q_low[1], k[2], k[3], T{});
            }
          }
        }
        float largest[2] = {-CUDART_INF_F, -CUDART_INF_F};
#pragma unroll
        for (int n = 0; n < G::kN; ++n) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int t = t0 + first + n * 8 + quad * 2 + (c & 1);
            const bool seen = t >= visible_begin[c / 2] && t < visible_end[c / 2];
            score[n][c] = seen ? AddScoreRest(even[n][c] + odd[n][c], rest[n][c]) : -CUDART_INF_F;
            largest[c / 2] = fmaxf(largest[c / 2], score[n][c]);
          }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 1));
          largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 2));
          if (quad == 0) slice_max[slice][m_tile * 16 + g + 8 * r] = largest[r];
        }
      }
      __syncthreads();

      // Scores become weights; the state's largest and factors, every warp for itself.
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = m_tile * 16 + g + 8 * r;
#pragma unroll
        for (int w = 0; w < G::kSlices; ++w) score_m[r] = fmaxf(score_m[r], slice_max[w][row]);
        const bool none = score_m[r] == -CUDART_INF_F;
#pragma unroll
        for (int n = 0; n < G::kN; ++n) {
          score[n][2 * r] = none ? 0.0f : exp2f(score[n][2 * r] - score_m[r]);
          score[n][2 * r + 1] = none ? 0.0f : exp2f(score[n][2 * r + 1] - score_m[r]);
        }
      }
      bool changed = false;
      float factor[kM][2];
#pragma unroll
      for (int i = 0; i < kM; ++i) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float largest = state.m[i][r];
#pragma unroll
          for (int w = 0; w < G::kSlices; ++w) largest = fmaxf(largest, slice_max[w][i * 16 + g + 8 * r]);
          factor[i][r] = largest == -CUDART_INF_F ? 1.0f : exp2f(state.m[i][r] - largest);
          state.m[i][r] = largest;
          changed |= factor[i][r] != 1.0f;
        }
      }
      if (__any_sync(kAllLanes, changed)) {
#pragma unroll
        for (int i = 0; i < kM; ++i) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            state.l[i][c] *= factor[i][c / 2];
#pragma unroll
            for (int n = 0; n < kColumns / 8; ++n) state.o[i][n][c] *= factor[i][c / 2];
          }
        }
      }

      const auto store = [&](bool high_part, bool rest_part) {
#pragma unroll
        for (int n = 0; n < G::kN; ++n) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const float a = score[n][2 * r], b = score[n][2 * r + 1];
            const uint32_t at = Swizzled<kWeightBytes>(m_tile * 16 + g + 8 * r, slice * G::kN + n) + quad * 4;
            const uint32_t rounded = Pack2(a, b, T{});
            if (high_part) StoreShared32(weights + at, rounded);
            if (rest_part) StoreShared32(weights_rest + at, PackRest2(a, b, rounded, T{}));
          }
        }
      };
      // Values: this warp's columns for all rows.
      const auto values = [&](const auto&... tiles) {
#pragma unroll
        for (int kk = 0; kk < kTokens / 16; ++kk) {
          uint32_t w[sizeof...(tiles)][kM][4];
          int part = 0;
          const auto load = [&](uint32_t tile) {
#pragma unroll
            for (int i = 0; i < kM; ++i) {
              LoadMatrix4(w[part][i], tile + Swizzled<kWeightBytes>(i * 16 + (lane & 15), kk * 2 + (lane >> 4)));
              Mma(state.l[i], w[part][i], Ones(T{}), Ones(T{}), T{});
            }
            ++part;
          };
          (load(tiles), ...);
#pragma unroll
          for (int d = 0; d < kColumns / 16; ++d) {
            uint32_t v[4];
            LoadMatrix4Transposed(v, stage + Swizzled<kRowBytes>(kk * 16 + (lane & 15),
                                                                 warp * (kColumns / 8) + d * 2 + (lane >> 4)));
#pragma unroll
            for (int which = 0; which < static_cast<int>(sizeof...(tiles)); ++which) {
#pragma unroll
              for (int i = 0; i < kM; ++i) {
                Mma(state.o[i][2 * d], w[which][i], v[0], v[1], T{});
                Mma(state.o[i][2 * d + 1], w[which][i], v[2], v[3], T{});
              }
            }
          }
        }
      };
      if (!precise) {
        store(true, false);
        __syncthreads();
        values(weights);
      } else if constexpr (G::kRoom) {
        store(true, true);
        __syncthreads();
        values(weights, weights_rest);
      } else {
        store(true, false);
        __syncthreads();
        values(weights);
        __syncthreads();
        store(false, true);
        __syncthreads();
        values(weights);
      }

      if constexpr (kFold) {
        if (round + 1 < num_rounds && (t0 + kTokens) % kFixedSplit != 0) continue;
#pragma unroll
        for (int i = 0; i < kM; ++i) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float a, b;
            FoldStats(&folded.m[i][r], &folded.l[i][2 * r], state.m[i][r], state.l[i][2 * r], &a, &b);
            if (b == 0.0f && a == 1.0f) continue;
#pragma unroll
            for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
              for (int c = 2 * r; c < 2 * r + 2; ++c) {
                folded.o[i][n][c] = FoldValue(folded.o[i][n][c], a, state.o[i][n][c], b);
              }
            }
          }
        }
        state.Clear();
        score_m[0] = score_m[1] = -CUDART_INF_F;
      }
    }

    const auto write = [&](const auto& result) {
#pragma unroll
      for (int i = 0; i < kM; ++i) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int row = i * 16 + g + 8 * r;
          const float l = result.l[i][2 * r];
          if (item.partial >= 0) {
            const int64_t at = int64_t{item.partial} * G::kRows + row;
            if (warp == 0 && quad == 0) s.partial_stats[at] = {result.m[i][r], l};
            float* to = s.partial_out + at * kValueDim + warp * kColumns + quad * 2;
#pragma unroll
            for (int n = 0; n < kColumns / 8; ++n) {
              *reinterpret_cast<float2*>(to + n * 8) = {result.o[i][n][2 * r], result.o[i][n][2 * r + 1]};
            }
            continue;
          }
          const TileRow to_row = rows[row];
          if (to_row.position < 0) continue;
          float* to = p.out + to_row.row * p.out_token_stride + to_row.head * p.out_head_stride + warp * kColumns + quad * 2;
#pragma unroll
          for (int n = 0; n < kColumns / 8; ++n) {
            to[n * 8] = __fdiv_rn(result.o[i][n][2 * r], l);
            to[n * 8 + 1] = __fdiv_rn(result.o[i][n][2 * r + 1], l);
          }
        }
      }
    };
    if constexpr (kFold) {
      write(folded);
    } else {
      write(state);
    }
  }
}

template <typename T, int kM, bool kFold>
CudaStatus Launch(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                  const AttentionParams& params) {
  using G = Geometry<kM>;
  auto* kernel = &MlaKernel<T, kM, kFold>;
  if (CudaStatus failure =
          CudaChecked(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, G::kSharedBytes),
                      "attention MLA: cudaFuncSetAttribute")) {
    return failure;
  }
  const auto grid = static_cast<unsigned>(schedule.max_items < exec.num_sms ? schedule.max_items : exec.num_sms);
  kernel<<<grid, kThreads, G::kSharedBytes, static_cast<cudaStream_t>(exec.stream)>>>(params, batch.spans, schedule);
  return CudaLaunched("attention MLA of %d spans, %d heads, %d rows a tile", batch.num_spans, params.num_q_heads,
                      G::kRows);
}

template <typename T>
CudaStatus LaunchRows(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                      const AttentionParams& params) {
  if (exec.deterministic) {
    return schedule.rows_per_tile == 16 ? Launch<T, 1, true>(exec, batch, schedule, params)
                                        : Launch<T, 2, true>(exec, batch, schedule, params);
  }
  switch (schedule.rows_per_tile) {
    case 16:
      return Launch<T, 1, false>(exec, batch, schedule, params);
    case 32:
      return Launch<T, 2, false>(exec, batch, schedule, params);
    default:
      return Launch<T, 4, false>(exec, batch, schedule, params);
  }
}

}  // namespace

bool MlaCovers(const AttentionParams& params) {
  const PagedKv& kv = params.kv;
  return HasVectorKv(kv) && kv.num_kv_heads == 1 && kv.k_dim == kKeyDim && kv.v_dim == kValueDim &&
         kv.v_offset == 0 && kv.v_token_stride == kKeyDim;
}

CudaStatus RunMlaAttention(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                           const AttentionParams& params) {
  return params.kv.dtype == DType::kF16 ? LaunchRows<__half>(exec, batch, schedule, params)
                                        : LaunchRows<__nv_bfloat16>(exec, batch, schedule, params);
}

}  // namespace cachalot
