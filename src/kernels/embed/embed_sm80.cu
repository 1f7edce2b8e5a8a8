// Embed: one block a token, four values a thread at a time. With norms two blocks a token, which keep its rows in registers.
#include <algorithm>

#include "device/cuda/clamped_half.cuh"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/norm_sum.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/embed/embed_cuda.h"
#include "kernels/matmul/matmul_problem.cuh"

namespace cachalot {
namespace {

constexpr int kThreads = 256;

template <DType kType>
__global__ void EmbedKernel(CudaEmbedParams p, CudaRowLayout layout) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int64_t token = blockIdx.x, id = p.token_ids[token], dim = p.table.k;
  float* y = p.y + token * p.y_stride;
  if (id < 0 || id >= p.table.n) {
    for (int64_t i = threadIdx.x; i < dim; i += kThreads) y[i] = 0.0f;
    return;
  }
  const WeightRow<kType> row(p.table.data + id * layout.row_bytes, layout, p.table.block_scales, p.table.block_scale_rows, id,
                             dim);
  for (int64_t i = threadIdx.x * 4; i < dim; i += kThreads * 4) {
    float v[4];
    row.Load4(i, v);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j < dim) y[i + j] = v[j];
    }
  }
}

constexpr int kMaxVectors = 8;  // of a thread
static_assert(kThreads == kNormWarps * 32);

// The row in the block's registers, as RmsNorm leaves it.
__device__ __forceinline__ void NormRow(float4 (&row)[kMaxVectors], int vectors, const float* weight, float eps, float* scratch) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    if (static_cast<int>(threadIdx.x) + i * kThreads < vectors) sum += SquareSum(row[i]);
  }
  const float inverse = InverseRms(BlockSum(sum, scratch), int64_t{vectors} * 4, eps);
  float4 w[kMaxVectors];
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    if (at < vectors) w[i] = reinterpret_cast<const float4*>(weight)[at];
  }
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) row[i] = ScaledByNorm(row[i], inverse, w[i]);
}

// Of what the next matmul reads: not more than has room in L2 beside what else is read.
constexpr int kUpcomingKib = 32 << 10;
constexpr int kUpcomingTokens = 8;  // at most

// To L2, by blocks that do nothing else: each the first `part` bytes of its share, since so the matmul's blocks begin.
__device__ __forceinline__ void BringUpcoming(const CudaEmbedParams& p, int block, int blocks, int64_t part) {
#if __CUDA_ARCH__ >= 900
  constexpr int kBytes = 2048;
  const int64_t begin = p.upcoming_bytes / blocks * block / 16 * 16, end = min(begin + part, p.upcoming_bytes / 16 * 16);
#pragma unroll 1
  for (int64_t at = begin + int64_t{threadIdx.x} * kBytes; at < end; at += int64_t{kThreads} * kBytes) {
    const auto bytes = static_cast<uint32_t>(min(int64_t{kBytes}, end - at));
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(p.upcoming + at), "r"(bytes) : "memory");
  }
#endif
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) EmbedNormsKernel(const __grid_constant__ CudaEmbedParams p, CudaRowLayout layout, int64_t upcoming_part) {
  __shared__ float scratch[2][32];
  const bool is_hidden = blockIdx.y != 0;
  const auto dim = static_cast<int>(p.table.k), vectors = dim / 4;
  LetNextKernelStart();
  if (blockIdx.y >= 2) {
    if (blockIdx.x == 0) BringUpcoming(p, static_cast<int>(blockIdx.y) - 2, static_cast<int>(gridDim.y) - 2, upcoming_part);
    return;
  }
  PrefetchNormWeight(is_hidden ? p.hidden_norm : p.norm, dim);
  if (is_hidden && p.front_norm != nullptr) PrefetchNormWeight(p.front_norm, dim);
  WaitForEarlierKernels();
  const int64_t token = blockIdx.x;
  auto* y = reinterpret_cast<float4*>(p.y + token * p.y_stride) + (is_hidden ? vectors : 0);
  uint2* y_half = nullptr;
  if (p.y_half.data != nullptr) y_half = reinterpret_cast<uint2*>(static_cast<uint16_t*>(p.y_half.data) + token * p.y_half.stride) + (is_hidden ? vectors : 0);
  float4 row[kMaxVectors] = {};
  if (is_hidden) {
    const int64_t from = p.hidden_rows != nullptr ? p.hidden_rows[token] : token;
    if (from < 0) return;
    const auto* x = reinterpret_cast<const float4*>(p.hidden + from * dim);
#pragma unroll
    for (int i = 0; i < kMaxVectors; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kThreads;
      if (at < vectors) row[i] = x[at];
    }
    if (p.front_norm != nullptr) NormRow(row, vectors, p.front_norm, p.eps, scratch[0]);
  } else if (const int64_t id = p.token_ids[token]; id >= 0 && id < p.table.n) {
    const WeightRow<kType> of_table(p.table.data + id * layout.row_bytes, layout, p.table.block_scales, p.table.block_scale_rows, id, dim);
#pragma unroll
    for (int i = 0; i < kMaxVectors; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kThreads;
      if (at >= vectors) continue;
      float v[4];
      of_table.Load4(at * 4, v);
      row[i] = {v[0], v[1], v[2], v[3]};
    }
  }
  NormRow(row, vectors, is_hidden ? p.hidden_norm : p.norm, p.eps, scratch[1]);
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    if (at >= vectors) continue;
    y[at] = row[i];
    if (y_half != nullptr) y_half[at] = ClampedHalf4(row[i]);
  }
}

template <DType kType>
CudaStatus Launch(const CudaExec& exec, const CudaEmbedParams& p) {
  if (p.norm != nullptr) {
    if (!EmbedTakesNorms(p)) return CudaFail(CudaFault::kInvalid, "embed: rows of %lld values with norms", static_cast<long long>(p.table.k));
    const auto bringing = static_cast<unsigned>(p.upcoming != nullptr && p.num_tokens <= kUpcomingTokens ? exec.num_sms : 0);
    const int64_t most = std::min(p.upcoming_bytes, int64_t{Tuned(CurrentTune().prefetch_kib, kUpcomingKib)} << 10);
    const int64_t part = bringing == 0 ? 0 : most / bringing / 16 * 16;
    LaunchOverlapped(&EmbedNormsKernel<kType>, dim3(static_cast<unsigned>(p.num_tokens), 2 + bringing), kThreads, 0, exec.stream, p,
                     CudaRowsOf(kType, p.table.k), part);
    return CudaLaunched("embed of %lld tokens with norms, table [%lld, %lld]", static_cast<long long>(p.num_tokens),
                        static_cast<long long>(p.table.n), static_cast<long long>(p.table.k));
  }
  LaunchOverlapped(&EmbedKernel<kType>, p.num_tokens, kThreads, 0, exec.stream, p, CudaRowsOf(kType, p.table.k));
  return CudaLaunched("embed of %lld tokens, table [%lld, %lld]", static_cast<long long>(p.num_tokens),
                      static_cast<long long>(p.table.n), static_cast<long long>(p.table.k));
}

}  // namespace

CudaStatus CudaEmbed(const CudaExec& exec, const CudaEmbedParams& params) {
  if (params.num_tokens == 0) return nullptr;
  switch (params.table.dtype) {
    case DType::kF32:
      return Launch<DType::kF32>(exec, params);
    case DType::kF16:
      return Launch<DType::kF16>(exec, params);
    case DType::kBF16:
      return Launch<DType::kBF16>(exec, params);
    case DType::kFP8E4M3:
      return Launch<DType::kFP8E4M3>(exec, params);
    case DType::kQ8_0:
      return Launch<DType::kQ8_0>(exec, params);
    case DType::kQ4_0:
      return Launch<DType::kQ4_0>(exec, params);
    case DType::kQ4_1:
      return Launch<DType::kQ4_1>(exec, params);
    case DType::kQ5_0:
      return Launch<DType::kQ5_0>(exec, params);
    case DType::kQ5_1:
      return Launch<DType::kQ5_1>(exec, params);
    case DType::kQ2_K:
      return Launch<DType::kQ2_K>(exec, params);
    case DType::kQ3_K:
      return Launch<DType::kQ3_K>(exec, params);
    case DType::kQ4_K:
      return Launch<DType::kQ4_K>(exec, params);
    case DType::kQ5_K:
      return Launch<DType::kQ5_K>(exec, params);
    case DType::kQ6_K:
      return Launch<DType::kQ6_K>(exec, params);
    case DType::kIQ4_NL:
      return Launch<DType::kIQ4_NL>(exec, params);
    case DType::kIQ4_XS:
      return Launch<DType::kIQ4_XS>(exec, params);
    default:
      return CudaFail(CudaFault::kUnsupported, "embed: no kernel reads a table of type number %d",
                      static_cast<int>(params.table.dtype));
  }
}

}  // namespace cachalot
