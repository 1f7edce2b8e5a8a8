// Rows moved by index, log-probabilities of given tokens, and the copy of heads: bound by the bytes they move.
#include <math_constants.h>

#include <algorithm>

#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/head_matmul/head_matmul.h"
#include "kernels/step/step.h"

namespace cachalot {
namespace {

constexpr int kThreads = 256;

// T: float4 where everything is aligned. A block copies a part of a row; what bounds it is latency, so all loads of a thread come first.
constexpr int kGatherBatch = 2;
template <typename T>
__global__ void __launch_bounds__(kThreads) GatherKernel(CudaGatherRowsParams p) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int64_t i = blockIdx.x, dim = p.dim / static_cast<int64_t>(sizeof(T) / sizeof(float));
  const int64_t from = p.src_rows != nullptr ? p.src_rows[i] : i, to = p.dst_rows != nullptr ? p.dst_rows[i] : i;
  if (from < 0 || to < 0) return;
  const T* src = reinterpret_cast<const T*>(p.src) + from * dim;
  T* dst = reinterpret_cast<T*>(p.dst) + to * dim;
  for (int64_t d0 = int64_t{blockIdx.y} * kGatherBatch * kThreads + threadIdx.x; d0 < dim; d0 += int64_t{gridDim.y} * kGatherBatch * kThreads) {
    T value[kGatherBatch];
#pragma unroll
    for (int j = 0; j < kGatherBatch; ++j) {
      if (d0 + j * kThreads < dim) value[j] = src[d0 + j * kThreads];
    }
#pragma unroll
    for (int j = 0; j < kGatherBatch; ++j) {
      if (d0 + j * kThreads < dim) dst[d0 + j * kThreads] = value[j];
    }
  }
}

__global__ void __launch_bounds__(kThreads) LogprobKernel(CudaLogprobParams p) {
  __shared__ float scratch[32];
  __shared__ float maxima[kThreads / 32];
  const float* logits = p.logits + int64_t{blockIdx.x} * p.vocab;
  float largest = -CUDART_INF_F;
  for (int i = threadIdx.x; i < p.vocab; i += kThreads) largest = fmaxf(largest, logits[i]);
  largest = WarpMax(largest);
  if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = largest;
  __syncthreads();
  for (const float other : maxima) largest = fmaxf(largest, other);
  float sum = 0;
  for (int i = threadIdx.x; i < p.vocab; i += kThreads) sum += expf(logits[i] - largest);
  sum = BlockSum(sum, scratch);
  if (threadIdx.x != 0) return;
  const int id = p.ids[blockIdx.x];
  p.out[blockIdx.x] = id < 0 || id >= p.vocab ? 0.0f : logits[id] - largest - logf(sum);
}

// T: float4 where everything is aligned. A thread copies one.
template <typename T>
__global__ void __launch_bounds__(kThreads) CopyHeadsKernel(CopyHeadsParams p, int64_t count) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  constexpr int kValues = sizeof(T) / sizeof(float);
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int run = p.dim / kValues, d = static_cast<int>(i % run) * kValues;
  const int64_t head = i / run % p.num_heads, row = i / run / p.num_heads;
  *reinterpret_cast<T*>(p.y + row * p.y_stride + head * p.y_head_stride + d) =
      *reinterpret_cast<const T*>(p.x + row * p.x_stride + head * p.x_head_stride + d);
}

}  // namespace

CudaStatus CudaGatherRows(const CudaExec& exec, const CudaGatherRowsParams& params) {
  if (params.num_rows == 0) return nullptr;
  const auto whole = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  const bool aligned = params.dim % 4 == 0 && whole(params.src) && whole(params.dst);
  const int64_t of_block = int64_t{kThreads} * kGatherBatch * (aligned ? 4 : 1);
  const auto parts = static_cast<unsigned>(std::clamp<int64_t>((params.dim + of_block - 1) / of_block, 1, 64));
  LaunchOverlapped(aligned ? &GatherKernel<float4> : &GatherKernel<float>, dim3(static_cast<unsigned>(params.num_rows), parts), kThreads, 0,
                   exec.stream, params);
  return CudaLaunched("gather_rows of [%lld, %lld]", static_cast<long long>(params.num_rows), static_cast<long long>(params.dim));
}

CudaStatus CudaLogprobRows(const CudaExec& exec, const CudaLogprobParams& params) {
  if (params.num_rows == 0) return nullptr;
  LogprobKernel<<<static_cast<unsigned>(params.num_rows), kThreads, 0, static_cast<cudaStream_t>(exec.stream)>>>(params);
  return CudaLaunched("logprob_rows of [%lld, %d]", static_cast<long long>(params.num_rows), params.vocab);
}

CudaStatus CudaCopyHeads(const CudaExec& exec, const CopyHeadsParams& params) {
  if (params.m == 0 || params.num_heads == 0 || params.dim == 0) return nullptr;
  const auto whole = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  const bool aligned = params.dim % 4 == 0 && params.x_stride % 4 == 0 && params.x_head_stride % 4 == 0 && params.y_stride % 4 == 0 &&
                       params.y_head_stride % 4 == 0 && whole(params.x) && whole(params.y);
  const int64_t count = params.m * params.num_heads * params.dim / (aligned ? 4 : 1);
  LaunchOverlapped(aligned ? &CopyHeadsKernel<float4> : &CopyHeadsKernel<float>, (count + kThreads - 1) / kThreads, kThreads, 0,
                   exec.stream, params, count);
  return CudaLaunched("copy_heads of %lld rows, %d heads of %d", static_cast<long long>(params.m), params.num_heads, params.dim);
}

}  // namespace cachalot
