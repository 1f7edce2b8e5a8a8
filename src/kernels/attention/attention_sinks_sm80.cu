// The first tokens of a sequence beside a quantised cache (PagedKv::sinks): a warp a row and head. Its softmax over them and the one over all
// others, which the kernels in front have left in `out` and AttentionSchedule::log_sums, become one. As attention_codes_generic_sm80.cu has
// it, value by value: sinks are a few blocks, the same for every row of a sequence, so they come from L1 and L2.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "kernels/attention/attention_codes.cuh"
#include "kernels/common/kv_codes.cuh"

namespace cachalot {
namespace {

constexpr int kWarps = 4;
constexpr int kTokens = 4;  // at a time
constexpr int kMaxDim = 128;
constexpr int kValues = kMaxDim / 32;  // of a lane

__global__ __launch_bounds__(kWarps * 32) void SinksKernel(const __grid_constant__ AttentionParams p, const __grid_constant__ CodePlanes planes,
                                                           const __grid_constant__ CodeSinks sinks, const SeqSpan* spans, const int32_t* row_spans,
                                                           const int32_t* row_positions, const float* log_sums, int64_t num_heads) {
  __shared__ float vectors[kWarps][kMaxDim + kKvUnit];
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t at = int64_t{blockIdx.x} * kWarps + warp;
  if (at >= num_heads) return;  // whole warps; nothing waits for the block
  const int64_t row = at / p.num_q_heads;
  const int head = static_cast<int>(at % p.num_q_heads), kv_head = head / (p.num_q_heads / p.kv.num_kv_heads);
  const int span = row_spans[row];
  if (span < 0 || spans[span].q_len <= 0) return;
  const int dim = planes.key.dim;
  const float* from = p.q + row * p.q_token_stride + head * p.q_head_stride;
  float* q = vectors[warp];
  for (int d = lane; d < dim; d += 32) q[d] = from[d];
  RotateByWarp(q, dim, planes.rotation, lane);
  if (HasIntegerKeys(planes)) {
    float largest = 0;
    for (int d = lane; d < dim; d += 32) largest = MaxOrNan(largest, fabsf(q[d]));
    const CodedQueryScale scale = QueryScaleOfWarp(largest);
    for (int d = lane; d < dim; d += 32) q[d] = __fmul_rn(rintf(__fmul_rn(q[d], scale.inverse)), scale.scale);
    __syncwarp();
  }

  const int end = min(row_positions[row] + 1, p.kv.sink_tokens), slot = spans[span].slot;
  const bool alone = row_positions[row] < p.kv.sink_tokens;
  const float factor = p.scale / static_cast<float>(planes.rotation) * kLog2E;
  float acc[kValues] = {};
  float m = -CUDART_INF_F, l = 0;
  for (int base = 0; base < end; base += kTokens) {
    const std::byte* regions[kTokens];
    float score[kTokens];
    float best = m;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int t = min(base + i, end - 1);
      regions[i] = BlockOf(sinks.kv, slot, t) + kv_head * sinks.planes.head_bytes;
      float sum = 0;
      for (int d = lane; d < dim; d += 32) sum += q[d] * StoredValue(sinks.planes.key, regions[i], t % sinks.kv.block_tokens, d);
      score[i] = base + i < end ? WarpSum(sum) * factor : -CUDART_INF_F;
      best = fmaxf(best, score[i]);
    }
    const float before = m == -CUDART_INF_F ? 0.0f : exp2f(m - best);
    m = best;
    l *= before;
#pragma unroll
    for (int j = 0; j < kValues; ++j) acc[j] *= before;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      if (base + i >= end) break;
      const float weight = exp2f(score[i] - m);
      l += weight;
#pragma unroll
      for (int j = 0; j < kValues; ++j) {
        const int d = lane + 32 * j;
        if (d < p.kv.v_dim) acc[j] += weight * StoredValue(sinks.planes.value, regions[i], (base + i) % sinks.kv.block_tokens, d);
      }
    }
  }

  // Both parts have a sum of weights; a row that sees sinks alone has no other part, and nothing that could be read in its place.
  const float others = alone ? -CUDART_INF_F : log_sums[at], mine = m + log2f(l), most = fmaxf(others, mine);
  const float weight = exp2f(others - most), my_weight = exp2f(mine - most), all = weight + my_weight;
  float* out = p.out + row * p.out_token_stride + head * p.out_head_stride;
#pragma unroll
  for (int j = 0; j < kValues; ++j) {
    const int d = lane + 32 * j;
    if (d >= p.kv.v_dim) continue;
    const float value = acc[j] / l;
    out[d] = alone ? value : (weight * out[d] + my_weight * value) / all;
  }
}

}  // namespace

bool SinksCover(const AttentionParams& params, const CodePlanes& planes) {
  return params.kv.k_dim <= kMaxDim && params.kv.v_dim <= kMaxDim && planes.exact_dim == 0 && !planes.value_in_key;
}

CudaStatus RunSinks(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                    const CodePlanes& planes) {
  const int64_t num_heads = int64_t{batch.num_rows} * params.num_q_heads;
  LaunchOverlapped<LaunchRole::kAttention>(&SinksKernel, static_cast<unsigned>((num_heads + kWarps - 1) / kWarps), kWarps * 32, 0, exec.stream, params,
                                           planes, CodeSinksOf(params.kv), batch.spans, batch.row_spans, batch.row_positions, schedule.log_sums,
                                           num_heads);
  return CudaLaunched("attention of %d rows to %d sinks", batch.num_rows, params.kv.sink_tokens);
}

}  // namespace cachalot
