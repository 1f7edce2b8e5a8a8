// RopeAppend behind the norm of each head of q and k: a warp a row and head, which lies in shared memory between the norm and the
// turn. Bit for bit RmsNorm (of as short rows) and RopeAppend one after the other.
// Bound: q read and written, k and v read, once.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/norm_sum.cuh"
#include "device/cuda/value.cuh"
#include "kernels/common/paged_kv.cuh"
#include "kernels/rope_append/rope_turn.cuh"

namespace cachalot {
namespace {

constexpr int kWarps = 4;

template <typename T>
__global__ __launch_bounds__(kWarps * 32) void RopeNormAppendKernel(const __grid_constant__ RopeAppendParams p, const int32_t* row_slots,
                                                                    const int32_t* row_positions, int64_t num_heads, bool aligned) {
  __shared__ float normed[kWarps][kMaxHeadNorm];
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
  const bool is_q = kv_head < 0, split = p.style == RopeStyle::kHalf;
  const int dim = kv.k_dim, half = p.rope_dim / 2, offset = is_q ? p.q_rope_offset : p.k_rope_offset;
  float* q = p.q + row * p.q_token_stride + head * p.q_head_stride;
  float* x = normed[warp];
  if (is_q) {
    NormHead(q, p.q_norm_weight, dim, p.head_norm_eps, aligned, x);
  } else {
    NormHead(p.k + row * p.k_token_stride + kv_head * p.k_head_stride, p.k_head_norm_weight, dim, p.head_norm_eps, aligned, x);
  }
  const float* cos = p.cos + row * half;
  const float* sin = p.sin + row * half;
  T* block = reinterpret_cast<T*>(BlockOf(kv, slot, position));
  const int64_t token = position % kv.block_tokens;
  for (int d = lane; d < dim; d += 32) {
    const int in_rope = d - offset;
    float value = x[d];
    if (in_rope >= 0 && in_rope < p.rope_dim) {
      const bool is_first = split ? in_rope < half : in_rope % 2 == 0;
      const int pair = split ? (is_first ? in_rope : in_rope - half) : in_rope / 2;
      const int other = split ? (is_first ? in_rope + half : in_rope - half) : (in_rope ^ 1);
      const float partner = x[offset + other];
      value = is_first ? First(value, partner, cos[pair], sin[pair]) : Second(partner, value, cos[pair], sin[pair]);
    }
    if (is_q) {
      q[d] = value;
    } else {
      FromF32(value, block + kv_head * kv.k_head_stride + token * kv.k_dim + d);
    }
  }
  if (is_q || p.v == nullptr) return;
  for (int d = lane; d < kv.v_dim; d += 32) {
    FromF32(p.v[row * p.v_token_stride + kv_head * p.v_head_stride + d],
            block + kv.v_offset + kv_head * kv.v_head_stride + token * kv.v_token_stride + d);
  }
}

}  // namespace

CudaStatus RopeNormAppend(const CudaExec& exec, const CudaBatch& batch, const RopeAppendParams& params) {
  const PagedKv& kv = params.kv;
  if (params.k_head_norm_weight == nullptr || params.k_norm_weight != nullptr || params.q_copy_rows != 0 || kv.k_dim > kMaxHeadNorm ||
      params.q_rope_offset < 0 || params.q_rope_offset + params.rope_dim > kv.k_dim) {
    return CudaFail(CudaFault::kInvalid, "rope_append: norm of heads of %d (at most %d), rope of %d at %d", kv.k_dim, kMaxHeadNorm,
                    params.rope_dim, params.q_rope_offset);
  }
  const auto whole = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  const bool aligned = kv.k_dim % 4 == 0 && params.q_token_stride % 4 == 0 && params.q_head_stride % 4 == 0 &&
                       params.k_token_stride % 4 == 0 && params.k_head_stride % 4 == 0 && whole(params.q) && whole(params.k);
  const int64_t num_heads = int64_t{batch.num_rows} * (params.num_q_heads + kv.num_kv_heads);
  const auto launch = [&](auto* kernel) {
    LaunchOverlapped<LaunchRole::kRope>(kernel, (num_heads + kWarps - 1) / kWarps, kWarps * 32, 0, exec.stream, params, batch.row_slots,
                                        batch.row_positions, num_heads, aligned);
  };
  switch (kv.dtype) {
    case DType::kF32:
      launch(&RopeNormAppendKernel<float>);
      break;
    case DType::kF16:
      launch(&RopeNormAppendKernel<__half>);
      break;
    case DType::kBF16:
      launch(&RopeNormAppendKernel<__nv_bfloat16>);
      break;
    default:
      return CudaFail(CudaFault::kUnsupported, "rope_append: no KV cache of type number %d", static_cast<int>(kv.dtype));
  }
  return CudaLaunched("rope_append of %d rows behind the norm of %d q heads, %d KV heads of %d", batch.num_rows, params.num_q_heads,
                      kv.num_kv_heads, kv.k_dim);
}

}  // namespace cachalot
