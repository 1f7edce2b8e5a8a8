// Attention over a quantised cache of every shape, in F32, as attention_codes_ref.cc has it: a block a row and head, the cache read
// value by value. Tiles of 64 positions, cut at multiples of 64, one online softmax: a row's bits depend on the row alone.
// Its bound is the instructions that take codes apart, far above that of memory: what is not meant to be fast takes it.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "kernels/attention/attention_codes.cuh"
#include "kernels/attention/attention_split.cuh"
#include "kernels/common/kv_codes.cuh"

namespace cachalot {
namespace {

constexpr int kThreads = 128;
constexpr int kTile = 64;
constexpr int kValues = kMaxKvDim / kThreads;  // of a thread

__global__ __launch_bounds__(kThreads) void GenericCodesKernel(const __grid_constant__ AttentionParams p, const __grid_constant__ CodePlanes planes,
                                                               const __grid_constant__ CodeSinks sinks, const SeqSpan* spans, const int32_t* row_spans, const int32_t* row_positions) {
  __shared__ float q[kMaxKvDim + kKvUnit];
  __shared__ float scores[kTile];
  const int row = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int span = row_spans[row];
  if (span < 0 || spans[span].q_len <= 0) return;
  const PagedKv& kv = p.kv;
  const int slot = spans[span].slot, position = row_positions[row];
  const int kv_head = head / (p.num_q_heads / kv.num_kv_heads);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = planes.key.dim;
  const float* from = p.q + row * p.q_token_stride + head * p.q_head_stride;
  for (int i = threadIdx.x; i < dim + planes.exact_dim; i += kThreads) q[i] = from[i];
  __syncthreads();
  if (warp == 0) {
    RotateByWarp(q, dim, planes.rotation, lane);
    if (HasIntegerKeys(planes)) {
      float largest = 0;
      for (int d = lane; d < dim; d += 32) largest = MaxOrNan(largest, fabsf(q[d]));
      const CodedQueryScale scale = QueryScaleOfWarp(largest);
      for (int d = lane; d < dim; d += 32) q[d] = __fmul_rn(rintf(__fmul_rn(q[d], scale.inverse)), scale.scale);
    }
  }
  __syncthreads();

  const float stored_scale = p.scale / static_cast<float>(planes.rotation);
  float acc[kValues] = {};
  float largest = -CUDART_INF_F, sum = 0;
  const int begin = VisibleBegin(position, p.window), end = position + 1;
  for (int tile = begin / kTile * kTile; tile < end; tile += kTile) {
    for (int i = warp; i < kTile; i += kThreads / 32) {
      const int t = tile + i;
      float score = -CUDART_INF_F;
      if (t >= begin && t < end) {
        const bool sink = t < kv.sink_tokens;
        const std::byte* region = RegionOf(kv, planes, sinks, slot, t, kv_head);
        const int64_t token = t % kv.block_tokens;
        float coded = 0, exact = 0;
        for (int d = lane; d < dim; d += 32) coded += q[d] * StoredValue(sink ? sinks.planes.key : planes.key, region, token, d);
        const auto* tail = reinterpret_cast<const uint16_t*>(region + (sink ? sinks.planes.exact : planes.exact)) + token * planes.exact_dim;
        for (int d = lane; d < planes.exact_dim; d += 32) exact += q[dim + d] * BF16BitsToF32(tail[d]);
        score = WarpSum(coded) * stored_scale + WarpSum(exact) * p.scale;
      }
      if (lane == 0) scores[i] = score;
    }
    __syncthreads();
    float best = fmaxf(scores[lane], scores[lane + 32]);
    best = fmaxf(largest, WarpMax(best));
    const float factor = best == -CUDART_INF_F ? 1.0f : expf(largest - best);
    largest = best;
    sum *= factor;
#pragma unroll
    for (int j = 0; j < kValues; ++j) acc[j] *= factor;
    __syncthreads();  // every warp has the largest: the scores may become weights
    if (threadIdx.x < kTile) {
      const int t = tile + static_cast<int>(threadIdx.x);
      const bool visible = t >= begin && t < end;
      const float score = scores[threadIdx.x];
      scores[threadIdx.x] = !visible || best == -CUDART_INF_F ? 0.0f : expf(score - best);
    }
    __syncthreads();
    for (int i = 0; i < kTile; ++i) {
      const int t = tile + i;
      if (t < begin || t >= end) continue;
      const float weight = scores[i];
      sum += weight;
      const std::byte* region = RegionOf(kv, planes, sinks, slot, t, kv_head);
      const CodeRows& rows = t < kv.sink_tokens ? sinks.planes.value : planes.value;
#pragma unroll
      for (int j = 0; j < kValues; ++j) {
        const int d = static_cast<int>(threadIdx.x) + j * kThreads;
        if (d < kv.v_dim) acc[j] += weight * StoredValue(rows, region, t % kv.block_tokens, d);
      }
    }
    __syncthreads();  // the weights have been read
  }
#pragma unroll
  for (int j = 0; j < kValues; ++j) {
    const int d = static_cast<int>(threadIdx.x) + j * kThreads;
    if (d < kv.v_dim) q[d] = __fdiv_rn(acc[j], sum);
  }
  __syncthreads();
  if (planes.value_in_key && warp == 0) RotateByWarp(q, kv.v_dim, planes.rotation, lane);
  __syncthreads();
  const float* mean = planes.value_in_key && kv.key_mean != nullptr ? kv.key_mean + int64_t{kv_head} * dim : nullptr;
  const float inverse = planes.value_in_key ? 1.0f / static_cast<float>(planes.rotation) : 1.0f;
  float* out = p.out + row * p.out_token_stride + head * p.out_head_stride;
  for (int d = threadIdx.x; d < kv.v_dim; d += kThreads) out[d] = __fmaf_rn(q[d], inverse, mean == nullptr ? 0.0f : mean[d]);
}

}  // namespace

CudaStatus RunGenericCodesAttention(const CudaExec& exec, const CudaBatch& batch, const AttentionParams& params, const CodePlanes& planes) {
  const PagedKv& kv = params.kv;
  if (kv.v_dim > kMaxKvDim || kv.k_dim > kMaxKvDim) {
    return CudaFail(CudaFault::kUnsupported, "attention over codes: keys of %d, values of %d; at most %d", kv.k_dim, kv.v_dim, kMaxKvDim);
  }
  const dim3 grid(static_cast<unsigned>(batch.num_rows), static_cast<unsigned>(params.num_q_heads));
  GenericCodesKernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(exec.stream)>>>(params, planes, CodeSinksOf(kv), batch.spans, batch.row_spans,
                                                                                   batch.row_positions);
  return CudaLaunched("generic attention over codes of %d rows, %d/%d heads of %d/%d", batch.num_rows, params.num_q_heads, kv.num_kv_heads,
                      kv.k_dim, kv.v_dim);
}

}  // namespace cachalot
