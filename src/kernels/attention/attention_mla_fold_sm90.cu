// Folds what several blocks of MLA's streaming kernel have attended of one sequence.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "kernels/attention/attention_mla_stream.cuh"

namespace cachalot {
namespace {

constexpr int kFoldThreads = 256;
constexpr int kFoldAhead = 8;  // loads of a thread under way
constexpr int kFoldFours = kMlaSums / 4;

// The output of each sequence that several blocks have attended, from their partial results in the order of
// the blocks. `ways` parts of a block's threads take a part of the pieces each, so that few sequences keep
// many SMs busy.
__global__ __launch_bounds__(kFoldThreads, 4) void FoldKernel(const __grid_constant__ AttentionParams p,
                                                              const SeqSpan* spans, int num_spans,
                                                              const __grid_constant__ AttentionSchedule s,
                                                              int ways) {
  __shared__ float factors[kMlaMostPieces][kMlaHeads];
  __shared__ float tops[kFoldThreads / kMlaHeads][kMlaHeads];
  static_assert(sizeof(factors) >= kFoldThreads * sizeof(float4));
  const int tid = static_cast<int>(threadIdx.x), lanes = kFoldThreads / ways, chunks = kFoldFours / lanes;
  const int way = tid / lanes, head = tid % kMlaHeads, slice = tid / kMlaHeads;
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int units = s.counts->stream_units, blocks = s.counts->stream_blocks;
  for (int work = static_cast<int>(blockIdx.x); work < num_spans * chunks;
       work += static_cast<int>(gridDim.x)) {
    const SeqSpan span = spans[work / chunks];
    if (span.q_len <= 0) continue;
    const int first_unit = s.spans[work / chunks].first_unit;
    const int mine = UnitsOf(RangeOfTile(span, 0, TileRowsOf(s, span), s.group, s.window));
    const int first = BlockOfUnit(first_unit, units, blocks),
              pieces = BlockOfUnit(first_unit + mine - 1, units, blocks) - first + 1;
    if (pieces == 1) continue;
    // A block's second partial result is of a sequence that begins in it.
    const auto partial = [&](int piece) { return 2 * int64_t{first + piece} + (piece == 0 ? 1 : 0); };
    const int four = work % chunks * lanes + tid % lanes;
    const int share = (pieces + ways - 1) / ways, begin = way * share, end = min(begin + share, pieces);
    float4 parts[kFoldAhead];  // the first while the factors are made
    const auto load = [&](int base) {
#pragma unroll
      for (int i = 0; i < kFoldAhead; ++i) {
        parts[i] = {0, 0, 0, 0};
        if (base + i < end)
          parts[i] =
              __ldcg(reinterpret_cast<const float4*>(s.partial_out + partial(base + i) * kMlaSums) + four);
      }
    };
    load(begin);

    // A factor for each piece and head.
    float largest = -CUDART_INF_F, sum = 0;
    for (int i = slice; i < pieces; i += kFoldThreads / kMlaHeads) {
      const float m = __ldcg(&s.partial_stats[partial(i) * kMlaHeads + head].x);
      factors[i][head] = m;
      largest = fmaxf(largest, m);
    }
    tops[slice][head] = largest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kFoldThreads / kMlaHeads; ++i) largest = fmaxf(largest, tops[i][head]);
    __syncthreads();
    for (int i = slice; i < pieces; i += kFoldThreads / kMlaHeads) {
      const float m = factors[i][head], factor = m == -CUDART_INF_F ? 0.0f : exp2f(m - largest);
      factors[i][head] = factor;
      sum = __fmaf_rn(__ldcg(&s.partial_stats[partial(i) * kMlaHeads + head].y), factor, sum);
    }
    tops[slice][head] = sum;
    __syncthreads();
    const MlaPlace place(four % kMlaConsumers);
    const int at = place.head + four / kMlaConsumers % 2 * 8,
              column = place.column + four / kMlaConsumers / 2 * 64;
    float2 sums = {0, 0};
#pragma unroll
    for (int i = 0; i < kFoldThreads / kMlaHeads; ++i) sums.x += tops[i][at], sums.y += tops[i][at + 1];
    float4 out = {0, 0, 0, 0};
    for (int base = begin; base < end; base += kFoldAhead) {
      if (base != begin) load(base);
#pragma unroll
      for (int i = 0; i < kFoldAhead; ++i) {
        if (base + i >= end) break;
        const float2 factor = *reinterpret_cast<const float2*>(&factors[base + i][at]);
        const float4& part = parts[i];
        // Of a piece in which nothing is visible the sums may be anything.
        if (factor.x != 0.0f)
          out.x = __fmaf_rn(part.x, factor.x, out.x), out.z = __fmaf_rn(part.z, factor.x, out.z);
        if (factor.y != 0.0f)
          out.y = __fmaf_rn(part.y, factor.y, out.y), out.w = __fmaf_rn(part.w, factor.y, out.w);
      }
    }
    if (ways > 1) {
      float4* ours = reinterpret_cast<float4*>(factors);
      __syncthreads();  // the factors have been read
      ours[tid] = out;
      __syncthreads();
      for (int i = 1; i < ways && way == 0; ++i) {
        const float4 more = ours[i * lanes + tid];
        out.x += more.x, out.y += more.y, out.z += more.z, out.w += more.w;
      }
    }
    if (way == 0) WriteMlaFour(p, span.q_begin, s.group, at, column, out, sums);
    __syncthreads();  // the next work's factors
  }
}

}  // namespace

CudaStatus RunMlaFold(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                      const AttentionParams& params) {
  // A block fits beside each of the streaming kernel's, and waits there for them: with the same share of
  // shared memory for an SM.
  (void)cudaFuncSetAttribute(&FoldKernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared);
  const int chunks = batch.num_spans * (kFoldFours / kFoldThreads), most = exec.num_sms;
  int ways = 1;
  while (ways < 8 && chunks * 2 * ways <= exec.num_sms) ways *= 2;
  LaunchOverlapped<LaunchRole::kAttention>(
      &FoldKernel, static_cast<unsigned>(chunks * ways < most ? chunks * ways : most), kFoldThreads, 0,
      exec.stream, params, batch.spans, batch.num_spans, schedule, ways);
  return CudaLaunched("attention MLA fold of %d spans", batch.num_spans);
}

}  // namespace cachalot
