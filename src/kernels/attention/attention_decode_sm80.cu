// Decode over a paged 16-bit cache with heads of 64, 128 or 256: all query heads of a KV head's group (and, for short
// drafts, several tokens) are the 16 rows of one tile, so keys and values are read once for all of them.
//
// Bound: the bytes of the visible keys and values. Each of a block's four warps is a stream of its own over every fourth
// run of 16 tokens: cp.async into its own ring, scores and values on tensor cores, its own online softmax; no barrier until
// the four are merged. Blocks stay and take items from the schedule. The tensor cores wait for memory anyway: queries and
// weights go through them twice, rounded and rest.
#include "device/cuda/clamped_half.cuh"
#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/tensor_core.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_prefetch.cuh"
#include "kernels/attention/attention_run.cuh"
#include "kernels/attention/attention_split.cuh"
#include "kernels/attention/attention_tile.cuh"
#include "kernels/common/paged_kv.cuh"

namespace cachalot {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kRows = 16;
constexpr int kRun = 16;                // tokens that a warp takes at a time
constexpr int kTile = kWarps * kRun;    // tokens of one round of the block
constexpr int kOwnSharedBytes = 4096;   // at most, beside the dynamic ones

template <int kDim>
struct Geometry {
  static constexpr int kRowBytes = kDim * 2;
  static constexpr int kPieces = kDim / 8;                  // of 16 bytes in a row
  static constexpr int kRunBytes = kRun * kRowBytes;        // keys, or values, of a run
  static constexpr int kStages = kDim == 64 ? 4 : 3;
  static constexpr int kQTileBytes = kRows * kRowBytes;
  static constexpr int kQBytes = 2 * kQTileBytes;  // rounded queries, then their rests
  static constexpr int kRingBytes = kStages * 2 * kRunBytes;
  static constexpr int kMergePitch = kDim + 8;              // floats; over the rings once they are empty
  static constexpr int kSharedBytes = kQBytes + kWarps * kRingBytes;
  static constexpr int kBlocksPerSm = kDim == 256 ? 1 : 2;
  static_assert(kWarps * kRows * kMergePitch * 4 <= kWarps * kRingBytes);
  // Fold mode: where the values folded so far are kept, behind the rings or in registers.
  static constexpr bool kFoldShared = kDim == 256;
  static constexpr int kFoldBytes = kFoldShared ? kRows * kDim * 4 : 0;
};

// Copies of one run's keys and values, all lanes. Positions outside [low, high) become zeros.
template <typename T, int kDim>
__device__ __forceinline__ void CopyRun(const PagedKv& kv, int slot, int kv_head, int t0, int low, int high,
                                        uint32_t keys, uint32_t values) {
  using G = Geometry<kDim>;
  const int lane = threadIdx.x % 32;
  const T* block = reinterpret_cast<const T*>(BlockOf(kv, slot, t0));
  const int64_t in_block = t0 % kv.block_tokens;
  const T* k = block + kv_head * kv.k_head_stride + in_block * kDim;
  const T* v = block + kv.v_offset + kv_head * kv.v_head_stride + in_block * kDim;
#pragma unroll
  for (int i = 0; i < kRun * G::kPieces / 32; ++i) {
    const int at = lane + i * 32, row = at / G::kPieces, piece = at % G::kPieces;
    const bool valid = t0 + row >= low && t0 + row < high;
    CopyAsync16(keys + Swizzled<G::kRowBytes>(row, piece), k + row * kDim + piece * 8, valid);
  }
#pragma unroll
  for (int i = 0; i < kRun * G::kPieces / 32; ++i) {
    const int at = lane + i * 32, row = at / G::kPieces, piece = at % G::kPieces;
    const bool valid = t0 + row >= low && t0 + row < high;
    CopyAsync16(values + Swizzled<G::kRowBytes>(row, piece), v + row * kDim + piece * 8, valid);
  }
}

// One run of 16 tokens at t0: scores, softmax, values.
template <typename T, int kDim>
__device__ __forceinline__ void AttendRun(uint32_t keys, uint32_t values, uint32_t q_shared, int t0,
                                          const Visible& visible, WarpState<kDim>* state) {
  using G = Geometry<kDim>;
  const int lane = threadIdx.x % 32;
  float s[2][4] = {}, rest[2][4] = {};
  constexpr int kUnroll = kDim == 256 ? 2 : kDim / 16;  // 128 accumulators leave few registers
#pragma unroll kUnroll
  for (int kk = 0; kk < kDim / 16; ++kk) {
    uint32_t q[4], q_rest[4], k[4];
    const uint32_t q_at = q_shared + Swizzled<G::kRowBytes>(lane & 15, kk * 2 + (lane >> 4));
    LoadMatrix4(q, q_at);
    LoadMatrix4(q_rest, q_at + G::kQTileBytes);
    LoadMatrix4(k, keys + Swizzled<G::kRowBytes>((lane & 7) + ((lane >> 4) << 3), kk * 2 + ((lane >> 3) & 1)));
    Mma(s[0], q, k[0], k[1], T{});
    Mma(s[1], q, k[2], k[3], T{});
    Mma(rest[0], q_rest, k[0], k[1], T{});
    Mma(rest[1], q_rest, k[2], k[3], T{});
  }
  Weights p;
  SoftmaxRun<T>(s, rest, t0, visible, state, &p);
#pragma unroll
  for (int d = 0; d < kDim / 16; ++d) {
    uint32_t v[4];
    LoadMatrix4Transposed(v, values + Swizzled<G::kRowBytes>(lane & 15, d * 2 + (lane >> 4)));
    Mma(state->o[2 * d], p.high, v[0], v[1], T{});
    Mma(state->o[2 * d + 1], p.high, v[2], v[3], T{});
    Mma(state->o[2 * d], p.rest, v[0], v[1], T{});
    Mma(state->o[2 * d + 1], p.rest, v[2], v[3], T{});
  }
}

__device__ __forceinline__ uint16_t* HalfAt(const AttentionParams& p, const TileRow& row, int dim, int d) {
  return static_cast<uint16_t*>(p.out_half.data) + row.row * p.out_half.stride + row.head * dim + d;
}

// kFold: a range longer than kFixedSplit is several softmaxes, folded in order.
template <typename T, int kDim, bool kFold>
__global__ __launch_bounds__(kThreads, Geometry<kDim>::kBlocksPerSm) void DecodeKernel(AttentionParams p,
                                                                                        const SeqSpan* spans,
                                                                                        AttentionSchedule s) {
  using G = Geometry<kDim>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float warp_m[kWarps][kRows], warp_l[kWarps][kRows], warp_factor[kWarps][kRows];
  __shared__ float row_m[kRows], row_l[kRows], row_a[kRows], row_b[kRows];
  __shared__ TileRow rows[kRows];
  __shared__ bool folds;
  constexpr int kMine = kRows * kDim / kThreads;  // output values of a thread
  LetNextKernelStart();
  PrefetchUpcoming(p);
  WaitForEarlierKernels();
  const PagedKv& kv = p.kv;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
  const uint32_t q_shared = SharedAddress(shared);
  const uint32_t ring = q_shared + G::kQBytes + warp * G::kRingBytes;
  auto* merge = reinterpret_cast<float*>(shared + G::kQBytes);  // [kWarps][kRows][kMergePitch]
  const int num_work = s.counts->num_items * s.num_kv_heads;

  for (int work = static_cast<int>(blockIdx.x); work < num_work; work += static_cast<int>(gridDim.x)) {
    const SplitItem item = s.items[work / s.num_kv_heads];
    const int kv_head = work % s.num_kv_heads;
    const SeqSpan span = spans[item.span];
    const TileRange range = RangeOfTile(span, item.tile, kRows, s.group, s.window);
    const int low = range.begin, high = min(range.end, item.end);

    __syncthreads();  // the last item's rows, queries and merged values have been read
    if (tid < kRows) {
      rows[tid] = RowOfTile(span, item.tile * kRows + tid, s.group, kv_head);
      row_m[tid] = -CUDART_INF_F;
      row_l[tid] = 0;
    }
    __syncthreads();
    StoreQueries<T, kRows, kDim, kThreads, true, true>(p, rows, q_shared, q_shared + G::kQTileBytes);
    Visible visible;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = rows[lane / 4 + 8 * r].position;
      visible.begin[r] = VisibleBegin(position, s.window);
      visible.end[r] = min(position + 1, item.end);
    }
    float folded_registers[kFold && !G::kFoldShared ? kMine : 1];
    auto* folded_shared = reinterpret_cast<float*>(shared + G::kSharedBytes) + tid;
    const auto folded = [&](int i) -> float& {
      return G::kFoldShared ? folded_shared[i * kThreads] : folded_registers[G::kFoldShared ? 0 : i];
    };
    if constexpr (kFold) {
#pragma unroll
      for (int i = 0; i < kMine; ++i) folded(i) = 0;
    }

    for (int begin = item.begin; begin < item.end;) {
      const int end = kFold ? min(item.end, (begin / kFixedSplit + 1) * kFixedSplit) : item.end;
      const int rounds = (end - begin + kTile - 1) / kTile;
      const bool last = end >= item.end;
      __syncthreads();  // queries are there; the rings hold no merged values any more
      const auto run_at = [&](int round) { return begin + round * kTile + warp * kRun; };
      const auto active = [&](int round) {
        const int t0 = run_at(round);
        return round < rounds && t0 < min(high, end) && t0 + kRun > low;
      };
      const auto copy = [&](int round) {
        if (active(round)) {
          const uint32_t stage = ring + round % G::kStages * 2 * G::kRunBytes;
          CopyRun<T, kDim>(kv, span.slot, kv_head, run_at(round), low, high, stage, stage + G::kRunBytes);
        }
        CommitAsync();
      };
#pragma unroll
      for (int round = 0; round < G::kStages - 1; ++round) copy(round);
      WarpState<kDim> state;
      state.Clear();
      for (int round = 0; round < rounds; ++round) {
        WaitAsync<G::kStages - 2>();
        __syncwarp();  // every lane's copies have arrived, and the oldest stage has been read
        copy(round + G::kStages - 1);
        if (!active(round)) continue;
        const uint32_t stage = ring + round % G::kStages * 2 * G::kRunBytes;
        AttendRun<T, kDim>(stage, stage + G::kRunBytes, q_shared, run_at(round), visible, &state);
      }
      WaitAsync<0>();
      __syncthreads();  // nobody reads or fills a ring: merge

#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float l = state.l[r];
        l += __shfl_xor_sync(kAllLanes, l, 1);
        l += __shfl_xor_sync(kAllLanes, l, 2);
        const int row = lane / 4 + 8 * r;
        if (lane % 4 == 0) {
          warp_m[warp][row] = state.m[r];
          warp_l[warp][row] = l;
        }
        float* to = merge + (warp * kRows + row) * G::kMergePitch + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) {
          *reinterpret_cast<float2*>(to + n * 8) = {state.o[n][2 * r], state.o[n][2 * r + 1]};
        }
      }
      __syncthreads();
      if (tid < kRows) {
        float largest = -CUDART_INF_F, sum = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, warp_m[w][tid]);
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          const float factor = warp_m[w][tid] == -CUDART_INF_F ? 0.0f : exp2f(warp_m[w][tid] - largest);
          warp_factor[w][tid] = factor;
          sum = __fmaf_rn(warp_l[w][tid], factor, sum);
        }
        if (kFold) {
          FoldStats(&row_m[tid], &row_l[tid], largest, sum, &row_a[tid], &row_b[tid]);
        } else {
          row_m[tid] = largest;
          row_l[tid] = sum;
        }
      }
      __syncthreads();
#pragma unroll kFold && !G::kFoldShared ? kMine : 4
      for (int i = 0; i < kMine; ++i) {
        const int e = tid + i * kThreads, r = e / kDim, d = e % kDim;
        float value = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          value = __fmaf_rn(merge[(w * kRows + r) * G::kMergePitch + d], warp_factor[w][r], value);
        }
        if constexpr (kFold) {
          const bool counts = row_b[r] != 0.0f || row_a[r] != 1.0f;
          folded(i) = value = counts ? FoldValue(folded(i), row_a[r], value, row_b[r]) : folded(i);
        }
        if (!last) continue;
        if (item.partial >= 0) {
          s.partial_out[((int64_t{item.partial} * s.num_kv_heads + kv_head) * kRows + r) * kDim + d] = value;
        } else if (rows[r].position >= 0) {
          const float out = __fdiv_rn(value, row_l[r]);
          p.out[rows[r].row * p.out_token_stride + rows[r].head * p.out_head_stride + d] = out;
          if (p.out_half.data != nullptr) *HalfAt(p, rows[r], kDim, d) = ClampedHalf(out);
        }
      }
      if (last && item.partial >= 0 && tid < kRows) {
        s.partial_stats[(int64_t{item.partial} * s.num_kv_heads + kv_head) * kRows + tid] = {row_m[tid], row_l[tid]};
      }
      begin = end;
    }
    if (item.partial < 0) continue;

    // The block that finishes a tile's last split folds them all.
    const SpanSplits entry = s.spans[item.span];
    const int64_t first = int64_t{entry.first_partial} + item.tile * entry.num_splits;
    __threadfence();  // this thread's part of the split is there for every block
    __syncthreads();
    if (tid == 0) {
      int32_t* arrivals = s.arrivals + first * s.num_kv_heads + kv_head;
      folds = atomicAdd(arrivals, 1) == entry.num_splits - 1;
      if (folds) *arrivals = 0;
    }
    __syncthreads();
    if (!folds) continue;
    __threadfence();
    for (int e = tid * 4; e < kRows * kDim; e += kThreads * 4) {
      const int r = e / kDim, d = e % kDim;
      if (rows[r].position < 0) continue;
      float* to = p.out + rows[r].row * p.out_token_stride + rows[r].head * p.out_head_stride + d;
      float out[4];
      FoldSplits(s, first, entry.num_splits, kv_head, r, d, kDim).Write(out);
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = out[i];
      if (p.out_half.data != nullptr) {
        *reinterpret_cast<uint2*>(HalfAt(p, rows[r], kDim, d)) = ClampedHalf4({out[0], out[1], out[2], out[3]});
      }
    }
  }
}

template <typename T, int kDim, bool kFold>
CudaStatus Launch(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                  const AttentionParams& params) {
  using G = Geometry<kDim>;
  auto* kernel = &DecodeKernel<T, kDim, kFold>;
  constexpr int kSharedBytes = G::kSharedBytes + (kFold ? G::kFoldBytes : 0);
  static_assert(kDim == 256 || kSharedBytes + kOwnSharedBytes <= kCudaLeastSharedBytes);
  if (CudaStatus failure = AllowSharedBytes(kernel, kSharedBytes, "attention decode")) return failure;
  const int64_t most = int64_t{schedule.max_items} * schedule.num_kv_heads;
  const int64_t resident = int64_t{exec.num_sms} * G::kBlocksPerSm;
  const int64_t grid = most < resident ? most : resident;
  LaunchOverlapped<LaunchRole::kAttention>(kernel, grid, kThreads, kSharedBytes, exec.stream, params, batch.spans, schedule);
  return CudaLaunched("attention decode of %d spans, %d/%d heads of %d", batch.num_spans, params.num_q_heads,
                      params.kv.num_kv_heads, kDim);
}

constexpr int64_t kWidestSharedBytes = Geometry<256>::kSharedBytes + Geometry<256>::kFoldBytes + kOwnSharedBytes;

template <typename T>
CudaStatus LaunchDim(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                     const AttentionParams& params) {
  const bool fold = exec.deterministic;
  switch (params.kv.k_dim) {
    case 64:
      return fold ? Launch<T, 64, true>(exec, batch, schedule, params)
                  : Launch<T, 64, false>(exec, batch, schedule, params);
    case 128:
      return fold ? Launch<T, 128, true>(exec, batch, schedule, params)
                  : Launch<T, 128, false>(exec, batch, schedule, params);
    default:
      return fold ? Launch<T, 256, true>(exec, batch, schedule, params)
                  : Launch<T, 256, false>(exec, batch, schedule, params);
  }
}

}  // namespace

bool DecodeCovers(const AttentionParams& params) {
  const PagedKv& kv = params.kv;
  return HasVectorKv(kv) && kv.k_dim == kv.v_dim && kv.v_token_stride == kv.v_dim &&
         (kv.k_dim == 64 || kv.k_dim == 128 || (kv.k_dim == 256 && CurrentCard().shared_bytes >= kWidestSharedBytes));
}

CudaStatus RunDecodeAttention(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                              const AttentionParams& params) {
  return params.kv.dtype == DType::kF16 ? LaunchDim<__half>(exec, batch, schedule, params)
                                        : LaunchDim<__nv_bfloat16>(exec, batch, schedule, params);
}

}  // namespace cachalot
