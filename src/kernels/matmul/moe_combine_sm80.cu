// Experts' outputs back to their tokens: a thread adds up a few values of one token in the order of its experts. Bound: the
// bytes of y.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "kernels/matmul/matmul_cuda.h"

namespace cachalot {
namespace {

constexpr int kThreads = 256;
constexpr int kBatch = 8;

template <int kValues>
__global__ void CombineKernel(CudaMoeCombineParams p, int64_t runs_per_token, int64_t runs) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= runs) return;
  const int64_t token = at / runs_per_token, i = at % runs_per_token * kValues;
  const int32_t* pairs = p.token_pairs + token * p.top_k;
  float sum[kValues] = {};
#pragma unroll 1
  for (int first = 0; first < p.top_k; first += kBatch) {  // loads of several pairs under way
    int32_t pair[kBatch];
    float weight[kBatch], v[kBatch][kValues];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) pair[j] = first + j < p.top_k ? pairs[first + j] : -1;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int64_t at = max(pair[j], 0);  // read, and not added, where there is none
      weight[j] = p.pair_weights[at];
      const float* y = p.y + at * p.y_stride + i;
      if constexpr (kValues == 4) {
        const float4 four = *reinterpret_cast<const float4*>(y);
        v[j][0] = four.x, v[j][1] = four.y, v[j][2] = four.z, v[j][3] = four.w;
      } else {
        v[j][0] = *y;
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
#pragma unroll
      for (int c = 0; c < kValues; ++c) sum[c] = pair[j] >= 0 ? fmaf(weight[j], v[j][c], sum[c]) : sum[c];
    }
  }
  float* residual = p.residual + token * p.residual_stride + i;
  if constexpr (kValues == 4) {
    float4 r = *reinterpret_cast<const float4*>(residual);
    r.x += sum[0], r.y += sum[1], r.z += sum[2], r.w += sum[3];
    if (p.extra != nullptr) {
      const float4 e = *reinterpret_cast<const float4*>(p.extra + token * p.extra_stride + i);
      r.x += e.x, r.y += e.y, r.z += e.z, r.w += e.w;
    }
    *reinterpret_cast<float4*>(residual) = r;
  } else {
    const float r = *residual + sum[0];
    *residual = p.extra != nullptr ? r + p.extra[token * p.extra_stride + i] : r;
  }
}

}  // namespace

CudaStatus CudaMoeCombine(const CudaExec& exec, const CudaMoeCombineParams& params) {
  if (params.num_tokens == 0 || params.dim == 0) return nullptr;
  const auto whole = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  const bool aligned = params.dim % 4 == 0 && params.y_stride % 4 == 0 && params.residual_stride % 4 == 0 &&
                       whole(params.y) && whole(params.residual) && whole(params.extra) && params.extra_stride % 4 == 0;
  const int64_t runs_per_token = aligned ? params.dim / 4 : params.dim, runs = params.num_tokens * runs_per_token;
  LaunchOverlapped(aligned ? &CombineKernel<4> : &CombineKernel<1>, (runs + kThreads - 1) / kThreads, kThreads, 0, exec.stream,
                   params, runs_per_token, runs);
  return CudaLaunched("moe_combine of %lld tokens, top %d, dim %lld", static_cast<long long>(params.num_tokens),
                      params.top_k, static_cast<long long>(params.dim));
}

}  // namespace cachalot
