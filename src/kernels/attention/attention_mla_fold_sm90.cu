// One block for each of the streaming kernel's (attention_mla_stream_sm90.cu), which takes an equal share of
// the sums of the sequences that that block has had a piece of. They are so small that one starts beside each
// block that attends: so the kernel behind may start as soon as one of those has ended, and copies while this
// one folds. What is here runs once: it is kept short.
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/tensor_core.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_mla_fold.cuh"

namespace cachalot {
namespace {

constexpr int kAhead = 8;  // pieces whose sums a thread loads at a time

// A sequence that a block and others have attended.
struct MlaCut {
  int first, last;  // blocks; none: last < 0
  int row;
};

// A block's second partial result is of a sequence that begins in it.
__device__ __forceinline__ int64_t MlaPartial(const MlaCut& cut, int piece) {
  return 2 * int64_t{cut.first + piece} + (piece == 0 ? 1 : 0);
}

// What this thread folds of a cut: groups of four sums [four, end) at steps of `lanes`, of pieces [first,
// last); where there are few groups, `ways` threads share the pieces of each.
struct FoldShare {
  int four, end, lanes;
  int first, last, pieces;
  int ways, way;

  __device__ explicit FoldShare(const MlaCut& cut) {
    constexpr int kFours = kMlaSums / 4;
    const int tid = static_cast<int>(threadIdx.x), own = static_cast<int>(blockIdx.x) - cut.first;
    pieces = max(cut.last - cut.first + 1, 1);  // of a cut that is none: nobody folds it
    const int begin = kFours * own / pieces;
    end = kFours * (own + 1) / pieces;
    const int count = end - begin;  // more than none: there are fewer pieces than groups
    ways = count > kMlaFoldThreads / 2 ? 1 : min(kMlaFoldThreads / count, pieces);
    lanes = ways == 1 ? kMlaFoldThreads : count;
    way = tid / lanes;
    four = begin + tid % lanes;
    const int share = (pieces + ways - 1) / ways;
    first = way * share;
    last = way < ways ? min(first + share, pieces) : first;
  }
};

// The copies of all pieces' stats have begun: a factor for each piece and head, and the inverse of the sum of
// the weights.
__device__ __forceinline__ void MakeFactors(int pieces, MlaFoldMemory* memory) {
  constexpr int kSlices = kMlaFoldThreads / kMlaHeads;
  const int head = static_cast<int>(threadIdx.x) % kMlaHeads,
            slice = static_cast<int>(threadIdx.x) / kMlaHeads;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool writes = threadIdx.x % 32 < kMlaHeads;
  static_assert(kMlaHeads == 16);  // a warp has two slices
  WaitAsync<0>();
  __syncthreads();
  float largest = -CUDART_INF_F, sum = 0;
#pragma unroll 1
  for (int piece = slice; piece < pieces; piece += kSlices)
    largest = fmaxf(largest, memory->stats[piece][head].x);
  largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, kMlaHeads));
  if (writes) memory->of_warps[0][warp][head] = largest;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kMlaFoldWarps; ++i) largest = fmaxf(largest, memory->of_warps[0][i][head]);
#pragma unroll 1
  for (int piece = slice; piece < pieces; piece += kSlices) {
    const float2 stat = memory->stats[piece][head];
    const float factor = stat.x == -CUDART_INF_F ? 0.0f : exp2f(stat.x - largest);
    memory->stats[piece][head].x = factor;
    sum = __fmaf_rn(stat.y, factor, sum);
  }
  sum += __shfl_xor_sync(kAllLanes, sum, kMlaHeads);
  if (writes) memory->of_warps[1][warp][head] = sum;
  __syncthreads();
  if (threadIdx.x < kMlaHeads) {
    sum = 0;
#pragma unroll
    for (int i = 0; i < kMlaFoldWarps; ++i) sum += memory->of_warps[1][i][head];
    memory->inverse_l[head] = __frcp_rn(sum);
  }
  __syncthreads();
}

// `dry`: nothing is read or written in global memory.
__device__ __forceinline__ void FoldCut(const AttentionParams& p, const AttentionSchedule& s,
                                        const MlaCut& cut, const FoldShare& f, bool dry,
                                        MlaFoldMemory* memory) {
  const int tid = static_cast<int>(threadIdx.x);
  constexpr int kCopies = kMlaHeads / 2;  // of a piece's stats
#pragma unroll 1
  for (int i = tid; i < f.pieces * kCopies; i += kMlaFoldThreads) {
    const int piece = i / kCopies, head = i % kCopies * 2;
    CopyAsync16(SharedAddress(&memory->stats[piece][head]),
                s.partial_stats + MlaPartial(cut, piece) * kMlaHeads + head, !dry);
  }
  CommitAsync();
  float4 parts[kAhead];
  const auto load = [&](int four, int piece) {
    const float4* from =
        reinterpret_cast<const float4*>(s.partial_out + 2 * int64_t{cut.first + piece} * kMlaSums) + four;
    constexpr int64_t kStep = 2 * kMlaSums / 4;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      parts[i] = {0, 0, 0, 0};
      if (piece + i < f.last && four < f.end && !dry)
        parts[i] = __ldcg(from + i * kStep + (i == 0 && piece == 0 ? kMlaSums / 4 : 0));
    }
  };
  int four = f.four, piece = f.first;
  load(four, piece);
  MakeFactors(f.pieces, memory);

  float4 out = {0, 0, 0, 0};
#pragma unroll 1
  while (four < f.end) {
    const int pair = four % 4 * 2 + four / kMlaConsumers % 2 * 8;  // the first of its two heads
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const float2* stats = memory->stats[min(piece + i, f.pieces - 1)] + pair;
      const float a = stats[0].x, b = stats[1].x;
      out.x = __fmaf_rn(parts[i].x, a, out.x), out.z = __fmaf_rn(parts[i].z, a, out.z);
      out.y = __fmaf_rn(parts[i].y, b, out.y), out.w = __fmaf_rn(parts[i].w, b, out.w);
    }
    piece += kAhead;
    if (piece >= f.last) {
      if (f.ways > 1) break;
      const int column = MlaPlace(four % kMlaConsumers).column + four / kMlaConsumers / 2 * 64;
      if (!dry)
        WriteMlaFour(p, cut.row, s.group, pair, column, out,
                     *reinterpret_cast<const float2*>(&memory->inverse_l[pair]));
      out = {0, 0, 0, 0};
      piece = f.first, four += f.lanes;
    }
    if (four < f.end) load(four, piece);
  }
  if (f.ways > 1) {
    __syncthreads();  // factors have been read
    memory->parts[tid] = out;
    __syncthreads();
    if (f.way == 0) {
#pragma unroll 1
      for (int i = 1; i < f.ways; ++i) {
        const float4 more = memory->parts[i * f.lanes + tid];
        out.x += more.x, out.y += more.y, out.z += more.z, out.w += more.w;
      }
      const int pair = four % 4 * 2 + four / kMlaConsumers % 2 * 8;
      const int column = MlaPlace(four % kMlaConsumers).column + four / kMlaConsumers / 2 * 64;
      if (!dry)
        WriteMlaFour(p, cut.row, s.group, pair, column, out,
                     *reinterpret_cast<const float2*>(&memory->inverse_l[pair]));
    }
  }
  __syncthreads();  // before the next
}

// Of few pieces, by warps that do not meet: 32 groups of sums at a time, of four pairs of heads; of the lanes that have the same pair
// each loads one piece's stats.
__device__ __forceinline__ void FoldFew(const AttentionParams& p, const AttentionSchedule& s, const MlaCut& cut, bool dry) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  constexpr int kChunks = kMlaSums / 4 / 32;
  const int pieces = cut.last - cut.first + 1, own = static_cast<int>(blockIdx.x) - cut.first;
  const int end = kChunks * (own + 1) / pieces;
#pragma unroll 1
  for (int chunk = kChunks * own / pieces + warp; chunk < end; chunk += kMlaFoldWarps) {
    const int four = chunk * 32 + lane;
    const int pair = lane % 4 * 2 + four / kMlaConsumers % 2 * 8;  // the first of its two heads
    float4 stat = {-CUDART_INF_F, 0, -CUDART_INF_F, 0};
    if (lane / 4 < pieces && !dry)
      stat = __ldcg(reinterpret_cast<const float4*>(s.partial_stats + MlaPartial(cut, lane / 4) * kMlaHeads + pair));
    const float4* from = reinterpret_cast<const float4*>(s.partial_out + 2 * int64_t{cut.first} * kMlaSums) + four;
    float4 parts[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      parts[i] = {0, 0, 0, 0};
      if (i < pieces && !dry) parts[i] = __ldcg(from + i * int64_t{2 * kMlaSums / 4} + (i == 0 ? kMlaSums / 4 : 0));
    }
    float m0 = stat.x, m1 = stat.z;
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) {
      m0 = fmaxf(m0, __shfl_xor_sync(kAllLanes, m0, lanes));
      m1 = fmaxf(m1, __shfl_xor_sync(kAllLanes, m1, lanes));
    }
    const float a = stat.x == -CUDART_INF_F ? 0.0f : exp2f(stat.x - m0), b = stat.z == -CUDART_INF_F ? 0.0f : exp2f(stat.z - m1);
    float l0 = stat.y * a, l1 = stat.w * b;
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) {
      l0 += __shfl_xor_sync(kAllLanes, l0, lanes);
      l1 += __shfl_xor_sync(kAllLanes, l1, lanes);
    }
    float4 out = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const float a_i = __shfl_sync(kAllLanes, a, i * 4 + lane % 4), b_i = __shfl_sync(kAllLanes, b, i * 4 + lane % 4);
      out.x = __fmaf_rn(parts[i].x, a_i, out.x), out.z = __fmaf_rn(parts[i].z, a_i, out.z);
      out.y = __fmaf_rn(parts[i].y, b_i, out.y), out.w = __fmaf_rn(parts[i].w, b_i, out.w);
    }
    if (!dry)
      WriteMlaFour(p, cut.row, s.group, pair, MlaPlace(four % kMlaConsumers).column + four / kMlaConsumers / 2 * 64, out,
                   {__frcp_rn(l0), __frcp_rn(l1)});
  }
}

__global__ __launch_bounds__(kMlaFoldThreads,
                             4) void MlaFoldKernel(const __grid_constant__ AttentionParams p,
                                                   const SeqSpan* spans,
                                                   const __grid_constant__ AttentionSchedule s) {
  __shared__ MlaFoldMemory memory;
  LetNextKernelStart();
  MlaCut head = {0, -1, 0}, tail = head;  // that began in an earlier block, that begins in this one
  Walk walk(s, spans);
  Piece piece;
  while (walk.Next(&piece)) {
    if (piece.whole) continue;
    const MlaCut cut = {piece.first_block, piece.last_block, piece.seq.q_begin};
    if (piece.continues)
      head = cut;
    else
      tail = cut;
  }
  const FoldShare of_head(head), of_tail(tail);
  // First without memory, so that its instructions are there when it counts.
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    if (i == 2) WaitForEarlierKernels();
    const MlaCut cut = i % 2 == 0 ? head : tail;
    if (cut.last < 0) continue;
    if (cut.last - cut.first < kAhead)
      FoldFew(p, s, cut, i < 2);
    else
      FoldCut(p, s, cut, i % 2 == 0 ? of_head : of_tail, i < 2, &memory);
  }
}

}  // namespace

void LaunchMlaFold(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                   const AttentionParams& params) {
  // As much shared memory as the kernel in front of it: else an SM that changes its share of it has to be
  // empty.
  (void)cudaFuncSetAttribute(&MlaFoldKernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared);
  LaunchOverlapped<LaunchRole::kAttention>(&MlaFoldKernel, schedule.stream_blocks, kMlaFoldThreads, 0,
                                           exec.stream, params, batch.spans, schedule);
}

}  // namespace cachalot
