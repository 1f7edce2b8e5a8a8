// Attention over a quantised cache with heads of 64 or 128, as kernels of one format; attention_codes_*_sm90.cu are one each.
//
// Decode: the work is shared out as attention_stream.cuh says, to one block of twelve warps or two of six on each SM. The warps of a block
// take the runs of a tile and head in turn and are merged as in attention_stream_sm90.cu. What earlier steps wrote is loaded before the
// kernels in front of this one have ended, for the reasons given there.
// Where no sequence has more than eight rows, they are the columns of the products (attention_codes_columns.cuh); sixteen warps with three runs
// ahead instead of twelve with four are slower by 1 to 26 % there (1 and 8 sequences of 8,192 and 32,768 tokens).
// Prefill: tiles of 64 rows, sixteen a warp, each of which goes through its runs by itself. The codes are taken apart once for each
// sixteen rows; in exchange the scores take half the tensor cores' time that F16's do, and no scratch is needed, whatever the context.
#pragma once

#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "kernels/attention/attention_codes_columns.cuh"
#include "kernels/attention/attention_prefetch.cuh"
#include "kernels/attention/attention_stream_merge.cuh"

namespace cachalot {
namespace {

// All of the block's shared memory.
template <typename F, int kBlocks>
struct SharedCodes {
  static constexpr int kConsumers = 12 / kBlocks;  // warps: twelve on an SM, so that each may have 168 registers
  static constexpr int kSlots = 4;                 // of a warp
  union {
    unsigned char rings[kConsumers][kSlots * SlotOf<F>::kBytes];
    float merge[kConsumers][kMergeRows][F::kDim + kMergePad];  // when all runs of a piece have been read
  };
  float warp_m[kConsumers][kStreamRows], warp_l[kConsumers][kStreamRows];
  SharedQueries<F> queries;
  bool folds;
};

// What the piece's rows see of it, in `state`, as MergePiece wants it; `reader` has been started.
template <typename F, bool kColumns, int kWarps, typename Reader>
__device__ __forceinline__ void AttendPiece(const AttentionParams& p, const CodePlanes& planes, const AttentionSchedule& s, const Piece& piece,
                                            bool aligned, Reader& reader, SharedQueries<F>* queries, typename Reader::Form::State* state) {
  constexpr int kRows = kColumns ? kColumnRows : kCodeRows;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = piece.tile * TileRowsOf(s, piece.seq);
  // All warps have read the last piece's queries before they merged it.
  for (int r = warp; r < kRows; r += kWarps) {
    StoreQueryRow<F>(p, planes, RowOfTile(piece.seq, first_row + r, s.group, piece.kv_head), r, aligned, queries);
  }
  __syncthreads();
  typename Reader::Form::Queries q;
  LoadQueries(*queries, &q);
  Visible visible;
  int whole_low = 0, whole_high = INT32_MAX;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int of_lane = kColumns ? 2 * (lane % 4) + r : lane / 4 + 8 * r;
    const TileRow row = RowOfTile(piece.seq, first_row + of_lane, s.group, piece.kv_head);
    const bool exists = row.position >= 0;  // else it sees whatever there is
    visible.begin[r] = exists ? VisibleBegin(row.position, s.window) : 0;
    visible.end[r] = exists ? row.position + 1 : INT32_MAX;
    whole_low = max(whole_low, visible.begin[r]);
    whole_high = min(whole_high, visible.end[r]);
  }
  whole_low = max(__reduce_max_sync(kAllLanes, whole_low), piece.begin);
  whole_high = min(__reduce_min_sync(kAllLanes, whole_high), piece.end);
  // Tokens beside the piece are another block's.
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    visible.begin[r] = max(visible.begin[r], piece.begin);
    visible.end[r] = min(visible.end[r], piece.end);
  }
  state->Clear();
  reader.Attend(q, visible, whole_low, whole_high, state);
  state->Finish(q.factor);
}

// kColumns: no span has more than kColumnRows rows.
template <typename F, int kBlocks, bool kColumns>
__global__ __launch_bounds__(SharedCodes<F, kBlocks>::kConsumers * 32, kBlocks) void CodesStreamKernel(
    const __grid_constant__ AttentionParams p, const __grid_constant__ CodePlanes planes, const SeqSpan* spans,
    const __grid_constant__ AttentionSchedule s, bool aligned) {
#if __CUDA_ARCH__ >= 900
  using S = SharedCodes<F, kBlocks>;
  using Reader = RunReader<F, S::kSlots, kColumns>;
  constexpr int kWarps = S::kConsumers;
  extern __shared__ __align__(128) unsigned char memory[];
  S& shared = *reinterpret_cast<S*>(memory);
  LetNextKernelStart();
  PrefetchUpcoming(p);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  bool waited = false, first = true;
  Walk walk(s, spans);
  Piece piece;
  while (walk.Next(&piece)) {
    const int count = (piece.runs - warp + kWarps - 1) / kWarps;
    Reader reader(p.kv, planes, piece.seq.slot, piece.kv_head, piece.first_run + warp, kWarps, max(count, 0), piece.begin, piece.end,
                  SharedAddress(shared.rings[warp]));
    if (!first) __syncthreads();  // the last piece has been merged
    first = false;
    reader.Start(piece.seq.kv_len - piece.seq.q_len, &waited);
    if (!waited) {
      WaitForEarlierKernels();
      waited = true;
    }
    typename Reader::Form::State state;
    AttendPiece<F, kColumns, kWarps>(p, planes, s, piece, aligned, reader, &shared.queries, &state);
    MergePiece<F::kDim>(p, s, piece, state, shared);
  }
  if (!waited) WaitForEarlierKernels();  // a kernel behind this one waits for those in front of it through it
#endif
}

constexpr int kPrefillWarps = kPrefillTileRows / kCodeRows;

// A warp's shared memory.
template <typename F>
struct SharedPrefill {
  static constexpr int kSlots = 3;
  unsigned char ring[kSlots * SlotOf<F>::kBytes];
  SharedQueries<F> queries;
};

template <typename F>
__global__ __launch_bounds__(kPrefillWarps * 32, 3) void CodesPrefillKernel(const __grid_constant__ AttentionParams p,
                                                                            const __grid_constant__ CodePlanes planes, const SeqSpan* spans,
                                                                            const __grid_constant__ AttentionSchedule s, bool aligned) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  auto* shared = reinterpret_cast<SharedPrefill<F>*>(memory);
  if (static_cast<int>(blockIdx.x) >= s.counts->num_prefill_items) return;
  const PrefillItem item = s.prefill[blockIdx.x];
  const SeqSpan span = spans[item.span];
  const int kv_head = static_cast<int>(blockIdx.y), warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = item.tile * kPrefillTileRows + warp * kCodeRows, num_rows = span.q_len * s.group;
  if (first_row >= num_rows) return;  // whole warps; nothing waits for the block
  const int base = span.kv_len - span.q_len, last_row = min(first_row + kCodeRows, num_rows) - 1;
  const int low = max(VisibleBegin(base + first_row / s.group, s.window), s.sinks), high = base + last_row / s.group + 1;
  const int first_run = low / kRunTokens, count = max((high + kRunTokens - 1) / kRunTokens - first_run, 0);
  SharedPrefill<F>& mine = shared[warp];
  RunReader<F, SharedPrefill<F>::kSlots> reader(p.kv, planes, span.slot, kv_head, first_run, 1, count, low, high, SharedAddress(mine.ring));
  bool waited = true;
  reader.Start(high, &waited);
  for (int r = 0; r < kCodeRows; ++r) {
    StoreQueryRow<F>(p, planes, RowOfTile(span, first_row + r, s.group, kv_head), r, aligned, &mine.queries);
  }
  __syncwarp();
  CodeQueries<F> q;
  LoadQueries<F>(mine.queries, &q);
  TileRow rows[2];
  Visible visible;
  int whole_low = low, whole_high = high;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    rows[r] = RowOfTile(span, first_row + lane / 4 + 8 * r, s.group, kv_head);
    const bool exists = rows[r].position >= 0;
    visible.begin[r] = exists ? max(VisibleBegin(rows[r].position, s.window), s.sinks) : low;
    visible.end[r] = exists ? rows[r].position + 1 : high;
    whole_low = max(whole_low, visible.begin[r]);
    whole_high = min(whole_high, visible.end[r]);
  }
  whole_low = __reduce_max_sync(kAllLanes, whole_low);
  whole_high = __reduce_min_sync(kAllLanes, whole_high);
  CodeState<typename F::Value> state;
  state.Clear();
  reader.Attend(q, visible, whole_low, whole_high, &state);
  state.Finish(q.factor);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float l = state.l[r];
    l += __shfl_xor_sync(kAllLanes, l, 1);
    l += __shfl_xor_sync(kAllLanes, l, 2);
    if (rows[r].position < 0) continue;
    const float inverse = __fdiv_rn(1.0f, l);
    if (lane % 4 == 0) WriteLogSum(s, p.num_q_heads, rows[r], state.m[r], l);
    float* to = p.out + rows[r].row * p.out_token_stride + rows[r].head * p.out_head_stride;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int j = 0; j < F::Value::kTiles; ++j) to[F::Value::ColumnOf(2 * (lane % 4) + e, j)] = state.o[j][2 * r + e] * inverse;
    }
  }
#endif
}

bool QueriesAligned(const AttentionParams& p) {
  return p.q_token_stride % 4 == 0 && p.q_head_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.q) % 16 == 0;
}

template <typename F, int kBlocks, bool kColumns>
CudaStatus LaunchStream(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                        const CodePlanes& planes) {
  using S = SharedCodes<F, kBlocks>;
  static_assert(sizeof(S) <= (kBlocks == 1 ? 227 : 113) * 1024);
  auto* kernel = &CodesStreamKernel<F, kBlocks, kColumns>;
  if (CudaStatus failure = AllowSharedBytes(kernel, int64_t{sizeof(S)}, "attention stream over codes")) return failure;
  LaunchOverlapped<LaunchRole::kAttention>(kernel, static_cast<unsigned>(schedule.stream_blocks), S::kConsumers * 32, int64_t{sizeof(S)}, exec.stream,
                                           params, planes, batch.spans, schedule, QueriesAligned(params));
  return CudaLaunched("attention stream of %d spans, %d/%d heads of %d in codes", batch.num_spans, params.num_q_heads, params.kv.num_kv_heads,
                      F::kDim);
}

template <typename F>
CudaStatus LaunchCodes(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                       const CodePlanes& planes, bool prefill) {
  if (!prefill) {
    const bool columns = int64_t{batch.max_q_len} * schedule.group <= kColumnRows, alone = schedule.stream_blocks_per_sm == 1;
    if (columns) {
      return alone ? LaunchStream<F, 1, true>(exec, batch, schedule, params, planes) : LaunchStream<F, 2, true>(exec, batch, schedule, params, planes);
    }
    return alone ? LaunchStream<F, 1, false>(exec, batch, schedule, params, planes) : LaunchStream<F, 2, false>(exec, batch, schedule, params, planes);
  }
  const dim3 grid(static_cast<unsigned>(schedule.max_prefill), static_cast<unsigned>(params.kv.num_kv_heads));
  constexpr int64_t kBytes = kPrefillWarps * int64_t{sizeof(SharedPrefill<F>)};
  auto* kernel = &CodesPrefillKernel<F>;
  if (CudaStatus failure = AllowSharedBytes(kernel, kBytes, "attention prefill over codes")) return failure;
  kernel<<<grid, kPrefillWarps * 32, kBytes, static_cast<cudaStream_t>(exec.stream)>>>(params, planes, batch.spans, schedule, QueriesAligned(params));
  return CudaLaunched("attention prefill of %d rows, %d/%d heads of %d in codes", batch.num_rows, params.num_q_heads, params.kv.num_kv_heads,
                      F::kDim);
}

template <KvCode kKey, KvCode kValue>
CudaStatus LaunchFormat(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                        const CodePlanes& planes, bool prefill) {
  return params.kv.k_dim == 64 ? LaunchCodes<CodeFormat<kKey, kValue, 64>>(exec, batch, schedule, params, planes, prefill)
                               : LaunchCodes<CodeFormat<kKey, kValue, 128>>(exec, batch, schedule, params, planes, prefill);
}

}  // namespace
}  // namespace cachalot
