// RopeTable and RopeAppend. A block does one row of the batch: first q's pairs in place, then the key's and the value's
// values on their way into the cache. Products and sums are rounded one by one, so the bits are the reference's.
// Bound: q read and written, k and v read, once. MLA's norm of the latent: each warp sums the squares itself, in RmsNorm's order.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/norm_sum.cuh"
#include "device/cuda/value.cuh"
#include "kernels/common/cuda_batch.h"
#include "kernels/common/paged_kv.cuh"
#include "kernels/rope_append/rope_append.h"
#include "kernels/rope_append/rope_turn.cuh"

namespace cachalot {
namespace {

constexpr int kThreads = 256;

// The angle is a double: cos and sin of it are reduced in double precision.
__global__ void RopeTableKernel(RopeTableParams p) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int64_t count = p.num_tokens * p.half_dim;
  for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < count; at += int64_t{gridDim.x} * kThreads) {
    const int32_t position = p.positions[at / p.half_dim];
    const double angle = position < 0 ? 0.0 : double(position) * double(p.inv_freq[at % p.half_dim]);
    double sine, cosine;
    sincos(angle, &sine, &cosine);
    p.cos[at] = static_cast<float>(cosine * p.mscale);
    p.sin[at] = static_cast<float>(sine * p.mscale);
  }
}

template <typename T>
__global__ void RopeAppendKernel(RopeAppendParams p, const int32_t* row_slots, const int32_t* row_positions, int blocks_per_row) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int64_t row = static_cast<int>(blockIdx.x) / blocks_per_row;
  const int32_t slot = row_slots[row], position = row_positions[row];
  if (slot < 0) return;
  const int half = p.rope_dim / 2;
  const bool split = p.style == RopeStyle::kHalf;
  const float* cos = p.cos + row * half;
  const float* sin = p.sin + row * half;

  const int first = static_cast<int>(blockIdx.x) % blocks_per_row * kThreads + static_cast<int>(threadIdx.x);
  const int step = blocks_per_row * kThreads;
  for (int i = first; i < p.num_q_heads * half; i += step) {
    const int head = i / half, pair = i % half;
    float* q = p.q + row * p.q_token_stride + head * p.q_head_stride + p.q_rope_offset;
    float* a = split ? q + pair : q + 2 * pair;
    float* b = split ? q + pair + half : q + 2 * pair + 1;
    const float a0 = *a, b0 = *b;
    const float turned_a = First(a0, b0, cos[pair], sin[pair]), turned_b = Second(a0, b0, cos[pair], sin[pair]);
    *a = turned_a;
    *b = turned_b;
    if (row < p.q_copy_rows) {
      float* copy = p.q_copy + row * p.q_copy_token_stride + head * p.q_copy_head_stride;
      copy[a - q] = turned_a;
      copy[b - q] = turned_b;
    }
  }

  const PagedKv& kv = p.kv;
  T* block = reinterpret_cast<T*>(BlockOf(kv, slot, position));
  const int64_t token = position % kv.block_tokens;
  const float key_inverse = p.k_norm_weight != nullptr ? KeyNorm(p, p.k + row * p.k_token_stride) : 0.0f;
  for (int i = first; i < kv.num_kv_heads * kv.k_dim; i += step) {
    const int head = i / kv.k_dim, d = i % kv.k_dim;
    const float* k = p.k + row * p.k_token_stride + head * p.k_head_stride;
    const int at = d - p.k_rope_offset;
    float value = k[d];
    if (p.k_norm_weight != nullptr && d < p.k_rope_offset) value = value * key_inverse * p.k_norm_weight[d];
    if (at >= 0 && at < p.rope_dim) {
      const bool is_first = split ? at < half : at % 2 == 0;
      const int pair = split ? (is_first ? at : at - half) : at / 2;
      const int other = split ? (is_first ? at + half : at - half) : (at ^ 1);
      const float partner = k[p.k_rope_offset + other];
      value = is_first ? First(value, partner, cos[pair], sin[pair]) : Second(partner, value, cos[pair], sin[pair]);
    }
    FromF32(value, block + head * kv.k_head_stride + token * kv.k_dim + d);
  }
  if (p.v == nullptr) return;
  for (int i = first; i < kv.num_kv_heads * kv.v_dim; i += step) {
    const int head = i / kv.v_dim, d = i % kv.v_dim;
    FromF32(p.v[row * p.v_token_stride + head * p.v_head_stride + d],
            block + kv.v_offset + head * kv.v_head_stride + token * kv.v_token_stride + d);
  }
}

}  // namespace

CudaStatus CudaRopeTable(const CudaExec& exec, const RopeTableParams& params) {
  const int64_t count = params.num_tokens * params.half_dim;
  if (count == 0) return nullptr;
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  LaunchOverlapped<LaunchRole::kRope>(&RopeTableKernel, blocks < 4096 ? blocks : 4096, kThreads, 0, exec.stream, params);
  return CudaLaunched("rope_table [%lld, %lld]", static_cast<long long>(params.num_tokens),
                      static_cast<long long>(params.half_dim));
}

bool CudaRopeAppendFuses() { return (CurrentTune().fuse & CudaTune::kFuseRope) != 0; }

CudaStatus CudaRopeAppend(const CudaExec& exec, const CudaBatch& batch, const RopeAppendParams& params) {
  const PagedKv& kv = params.kv;
  const int end = params.rope_dim;
  if (end < 0 || end % 2 != 0 || params.k_rope_offset < 0 || params.k_rope_offset + end > kv.k_dim ||
      kv.block_tokens <= 0) {
    return CudaFail(CudaFault::kInvalid, "rope_append: rope of %d at %d of a key of %d, blocks of %d tokens", end,
                    params.k_rope_offset, kv.k_dim, kv.block_tokens);
  }
  if ((params.k_norm_weight != nullptr && (kv.num_kv_heads != 1 || params.k_rope_offset == 0)) ||
      (params.q_copy_rows > 0 && params.q_copy == nullptr)) {
    return CudaFail(CudaFault::kInvalid, "rope_append: norm of %d values of %d KV heads, %lld rows to copy", params.k_rope_offset,
                    kv.num_kv_heads, static_cast<long long>(params.q_copy_rows));
  }
  if (batch.num_rows == 0) return nullptr;
  if (kv.planes != nullptr) return RopeAppendCodes(exec, batch, params);
  if (params.q_norm_weight != nullptr) return RopeNormAppend(exec, batch, params);
  // Few rows: several blocks a row, so that more than a few SMs work.
  const int64_t q_work = int64_t{params.num_q_heads} * (end / 2), k_work = int64_t{kv.num_kv_heads} * kv.k_dim;
  const int64_t work = q_work > k_work ? q_work : k_work;
  const int64_t wanted = batch.num_rows >= 256 ? 1 : (work + 2 * kThreads - 1) / (2 * kThreads);
  const int blocks_per_row = static_cast<int>(wanted < 1 ? 1 : wanted > 16 ? 16 : wanted);
  const auto launch = [&](auto* kernel) {
    LaunchOverlapped<LaunchRole::kRope>(kernel, int64_t{batch.num_rows} * blocks_per_row, kThreads, 0, exec.stream, params, batch.row_slots,
                     batch.row_positions, blocks_per_row);
  };
  switch (kv.dtype) {
    case DType::kF32:
      launch(&RopeAppendKernel<float>);
      break;
    case DType::kF16:
      launch(&RopeAppendKernel<__half>);
      break;
    case DType::kBF16:
      launch(&RopeAppendKernel<__nv_bfloat16>);
      break;
    default:
      return CudaFail(CudaFault::kUnsupported, "rope_append: no KV cache of type number %d",
                      static_cast<int>(kv.dtype));
  }
  return CudaLaunched("rope_append of %d rows, %d q heads, %d KV heads of %d/%d, rope %d", batch.num_rows,
                      params.num_q_heads, kv.num_kv_heads, kv.k_dim, kv.v_dim, end);
}

}  // namespace cachalot
