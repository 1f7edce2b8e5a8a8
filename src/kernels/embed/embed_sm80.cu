// Embed: one block a token, four values a thread at a time.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
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

template <DType kType>
CudaStatus Launch(const CudaExec& exec, const CudaEmbedParams& p) {
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
