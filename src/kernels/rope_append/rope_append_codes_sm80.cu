// RopeAppend into a quantised cache: a warp a row and head. q's heads are turned in place; a key goes through shared memory: norm, turn,
// mean, rotation, codes. The pages are the reference's bit for bit.
// Bound: q read and written, k and v read, codes written, once.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "kernels/common/kv_codes.cuh"
#include "kernels/rope_append/rope_turn.cuh"

namespace cachalot {
namespace {

constexpr int kWarps = 4;

__global__ __launch_bounds__(kWarps * 32) void RopeAppendCodesKernel(const __grid_constant__ RopeAppendParams p,
                                                                     const __grid_constant__ CodePlanes planes,
                                                                     const __grid_constant__ CodeSinks sinks, const int32_t* row_slots,
                                                                     const int32_t* row_positions, int64_t num_heads, bool aligned) {
  __shared__ float vectors[kWarps][kMaxKvDim + kKvUnit];
  LetNextKernelStart();
  WaitForEarlierKernels();
  const PagedKv& kv = p.kv;
  const int heads = p.num_q_heads + kv.num_kv_heads, warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t at = int64_t{blockIdx.x} * kWarps + warp;
  if (at >= num_heads) return;  // whole warps; nothing waits for the block
  const int64_t row = at / heads;
  const int head = static_cast<int>(at % heads), kv_head = head - p.num_q_heads;
  const int32_t slot = row_slots[row], position = row_positions[row];
  if (slot < 0) return;
  const bool split = p.style == RopeStyle::kHalf;
  const int half = p.rope_dim / 2;
  const float* cos = p.cos + row * half;
  const float* sin = p.sin + row * half;
  float* x = vectors[warp];
  // The pair at x + offset, turned where it lies.
  const auto turn = [&](float* from, int pair, float* copy) {
    const int a = split ? pair : 2 * pair, b = split ? pair + half : 2 * pair + 1;
    const float a0 = from[a], b0 = from[b];
    const float turned_a = First(a0, b0, cos[pair], sin[pair]), turned_b = Second(a0, b0, cos[pair], sin[pair]);
    from[a] = turned_a;
    from[b] = turned_b;
    if (copy == nullptr) return;
    copy[a] = turned_a;
    copy[b] = turned_b;
  };

  if (kv_head < 0) {
    float* q = p.q + row * p.q_token_stride + head * p.q_head_stride;
    if (p.q_norm_weight != nullptr) {
      NormHead(q, p.q_norm_weight, kv.k_dim, p.head_norm_eps, aligned, x);
      for (int pair = lane; pair < half; pair += 32) turn(x + p.q_rope_offset, pair, nullptr);
      __syncwarp();
      for (int d = lane; d < kv.k_dim; d += 32) q[d] = x[d];
      return;
    }
    float* copy = row < p.q_copy_rows ? p.q_copy + row * p.q_copy_token_stride + head * p.q_copy_head_stride : nullptr;
    for (int pair = lane; pair < half; pair += 32) turn(q + p.q_rope_offset, pair, copy);
    return;
  }

  const float* k = p.k + row * p.k_token_stride + kv_head * p.k_head_stride;
  if (p.k_head_norm_weight != nullptr) {
    NormHead(k, p.k_head_norm_weight, kv.k_dim, p.head_norm_eps, aligned, x);
  } else {
    const float inverse = p.k_norm_weight != nullptr ? KeyNorm(p, k) : 0.0f;
    for (int d = lane; d < kv.k_dim; d += 32) {
      x[d] = p.k_norm_weight != nullptr && d < p.k_rope_offset ? k[d] * inverse * p.k_norm_weight[d] : k[d];
    }
    __syncwarp();
  }
  for (int pair = lane; pair < half; pair += 32) turn(x + p.k_rope_offset, pair, nullptr);
  __syncwarp();

  std::byte* region = RegionOf(kv, planes, sinks, slot, position, kv_head);
  const bool sink = position < kv.sink_tokens;
  const int64_t token = position % kv.block_tokens;
  const int dim = planes.key.dim;
  const float* mean = kv.key_mean == nullptr ? nullptr : kv.key_mean + int64_t{kv_head} * dim;
  auto* exact = reinterpret_cast<__nv_bfloat16*>(region + (sink ? sinks.planes.exact : planes.exact)) + token * planes.exact_dim;
  for (int i = lane; i < planes.exact_dim; i += 32) exact[i] = __float2bfloat16_rn(DeviceKvFinite(x[dim + i]));
  for (int d = lane; d < dim; d += 32) {
    const float finite = DeviceKvFinite(x[d]);
    x[d] = mean == nullptr ? finite : __fsub_rn(finite, mean[d]);
  }
  RotateByWarp(x, dim, planes.rotation, lane);
  EncodeByWarp(sink ? sinks.planes.key : planes.key, x, region, token, lane);
  if (p.v == nullptr) return;
  const float* v = p.v + row * p.v_token_stride + kv_head * p.v_head_stride;
  for (int d = lane; d < kv.v_dim; d += 32) x[d] = v[d];
  EncodeByWarp(sink ? sinks.planes.value : planes.value, x, region, token, lane);
}

}  // namespace

CudaStatus RopeAppendCodes(const CudaExec& exec, const CudaBatch& batch, const RopeAppendParams& params) {
  const PagedKv& kv = params.kv;
  const bool norms_heads = params.q_norm_weight != nullptr;
  if (kv.k_dim > kMaxKvDim || kv.v_dim > kMaxKvDim || norms_heads != (params.k_head_norm_weight != nullptr) ||
      (norms_heads && (params.k_norm_weight != nullptr || params.q_copy_rows != 0 || kv.k_dim > kMaxHeadNorm || params.q_rope_offset < 0 ||
                       params.q_rope_offset + params.rope_dim > kv.k_dim)) ||
      (params.v == nullptr) != kv.planes->value_in_key) {
    return CudaFail(CudaFault::kInvalid, "rope_append: codes of keys of %d, values of %d (at most %d); norm of heads %d", kv.k_dim,
                    kv.v_dim, kMaxKvDim, norms_heads);
  }
  const auto whole = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  const bool aligned = kv.k_dim % 4 == 0 && params.q_token_stride % 4 == 0 && params.q_head_stride % 4 == 0 &&
                       params.k_token_stride % 4 == 0 && params.k_head_stride % 4 == 0 && whole(params.q) && whole(params.k);
  const int64_t num_heads = int64_t{batch.num_rows} * (params.num_q_heads + kv.num_kv_heads);
  LaunchOverlapped<LaunchRole::kRope>(&RopeAppendCodesKernel, static_cast<unsigned>((num_heads + kWarps - 1) / kWarps), kWarps * 32, 0, exec.stream,
                                      params, CodePlanesOf(*kv.planes), CodeSinksOf(kv), batch.row_slots, batch.row_positions, num_heads, aligned);
  return CudaLaunched("rope_append of %d rows into codes, %d q heads, %d KV heads of %d/%d, rope %d", batch.num_rows, params.num_q_heads,
                      kv.num_kv_heads, kv.k_dim, kv.v_dim, params.rope_dim);
}

}  // namespace cachalot
