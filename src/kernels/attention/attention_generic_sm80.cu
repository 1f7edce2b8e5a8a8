// Attention of every shape in F32: a block a row and head. Tiles of 64 cache positions, cut at multiples of 64: scores by
// warps, one online softmax, values by threads. A row's bits depend on the row alone.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/value.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_split.cuh"
#include "kernels/common/paged_kv.cuh"

namespace cachalot {
namespace {

constexpr int kThreads = 128;
constexpr int kTile = 64;
constexpr int kValues = 8;  // of a thread: v_dim up to 1024

template <typename T>
__global__ void GenericKernel(AttentionParams p, const SeqSpan* spans, const int32_t* row_spans,
                              const int32_t* row_positions) {
  extern __shared__ float q[];  // [k_dim]
  __shared__ float scores[kTile];
  const int row = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int span = row_spans[row];
  if (span < 0 || spans[span].q_len <= 0) return;
  const PagedKv& kv = p.kv;
  const int slot = spans[span].slot, position = row_positions[row];
  const int kv_head = head / (p.num_q_heads / kv.num_kv_heads);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = threadIdx.x; i < kv.k_dim; i += kThreads) {
    q[i] = p.q[row * p.q_token_stride + head * p.q_head_stride + i];
  }
  __syncthreads();

  float acc[kValues] = {};
  float largest = -CUDART_INF_F, sum = 0;
  const int begin = VisibleBegin(position, p.window), end = position + 1;
  for (int tile = begin / kTile * kTile; tile < end; tile += kTile) {
    for (int i = warp; i < kTile; i += kThreads / 32) {
      const int t = tile + i;
      float score = -CUDART_INF_F;
      if (t >= begin && t < end) {
        const T* k = reinterpret_cast<const T*>(BlockOf(kv, slot, t)) + kv_head * kv.k_head_stride +
                     int64_t{t % kv.block_tokens} * kv.k_dim;
        float dot = 0;
        for (int d = lane; d < kv.k_dim; d += 32) dot += q[d] * ToF32(k[d]);
        score = WarpSum(dot) * p.scale;
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
      const T* v = reinterpret_cast<const T*>(BlockOf(kv, slot, t)) + kv.v_offset + kv_head * kv.v_head_stride +
                   int64_t{t % kv.block_tokens} * kv.v_token_stride;
#pragma unroll
      for (int j = 0; j < kValues; ++j) {
        const int d = static_cast<int>(threadIdx.x) + j * kThreads;
        if (d < kv.v_dim) acc[j] += weight * ToF32(v[d]);
      }
    }
    __syncthreads();  // the weights have been read
  }
  float* out = p.out + row * p.out_token_stride + head * p.out_head_stride;
#pragma unroll
  for (int j = 0; j < kValues; ++j) {
    const int d = static_cast<int>(threadIdx.x) + j * kThreads;
    if (d < kv.v_dim) out[d] = __fdiv_rn(acc[j], sum);
  }
}

}  // namespace

CudaStatus RunGenericAttention(const CudaExec& exec, const CudaBatch& batch, const AttentionParams& params) {
  const PagedKv& kv = params.kv;
  if (kv.v_dim > kValues * kThreads || kv.k_dim > 8192) {
    return CudaFail(CudaFault::kUnsupported, "attention: keys of %d, values of %d; at most 8192 and %d", kv.k_dim,
                    kv.v_dim, kValues * kThreads);
  }
  const dim3 grid(static_cast<unsigned>(batch.num_rows), static_cast<unsigned>(params.num_q_heads));
  const size_t shared = static_cast<size_t>(kv.k_dim) * sizeof(float);
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  switch (kv.dtype) {
    case DType::kF32:
      GenericKernel<float><<<grid, kThreads, shared, stream>>>(params, batch.spans, batch.row_spans, batch.row_positions);
      break;
    case DType::kF16:
      GenericKernel<__half><<<grid, kThreads, shared, stream>>>(params, batch.spans, batch.row_spans, batch.row_positions);
      break;
    case DType::kBF16:
      GenericKernel<__nv_bfloat16>
          <<<grid, kThreads, shared, stream>>>(params, batch.spans, batch.row_spans, batch.row_positions);
      break;
    default:
      return CudaFail(CudaFault::kUnsupported, "attention: no KV cache of type number %d", static_cast<int>(kv.dtype));
  }
  return CudaLaunched("generic attention of %d rows, %d/%d heads of %d/%d", batch.num_rows, params.num_q_heads,
                      kv.num_kv_heads, kv.k_dim, kv.v_dim);
}

}  // namespace cachalot
