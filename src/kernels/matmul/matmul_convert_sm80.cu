// x to 16 bits for the tensor cores, and the bias where cuBLASLt writes y. Bound: the bytes of x, small beside W's.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device/cuda/cuda_error.h"
#include "device/cuda/dependent_launch.cuh"
#include "kernels/matmul/stream_format.cuh"

namespace cachalot {
namespace {

constexpr int kThreads = 256;

// A thread a run of 8 values: those of lane quad `q` of block `b`.
template <typename Element, StreamOrder kOrder, bool kFragments>
__global__ void ConvertKernel(ConvertXParams p, int64_t runs, int runs_per_row) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= runs) return;
  const int64_t row = at / runs_per_row;
  const int run = static_cast<int>(at % runs_per_row), q = run % 4;
  const int64_t first = run / 4 * 32;
  const float* x = p.x + row / p.num_groups * p.x_stride + row % p.num_groups * p.x_group_stride;
  float v[2][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t i = first + (kOrder == StreamOrder::kNibble ? half * 16 + q * 4 : q * 8 + half * 4);
    if (p.aligned && i + 4 <= p.k) {
      const float4 f = *reinterpret_cast<const float4*>(x + i);
      v[half][0] = f.x, v[half][1] = f.y, v[half][2] = f.z, v[half][3] = f.w;
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) v[half][j] = i + j < p.k ? x[i + j] : 0.0f;
    }
  }
  uint32_t out[4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if constexpr (kOrder == StreamOrder::kPlain) {
      out[half * 2] = PackX(v[half][0], v[half][1], Element{});
      out[half * 2 + 1] = PackX(v[half][2], v[half][3], Element{});
    } else {
      out[half * 2] = PackX(v[half][0], v[half][2], Element{});
      out[half * 2 + 1] = PackX(v[half][1], v[half][3], Element{});
    }
  }
  if constexpr (kFragments) {  // registers of the block's two multiplications of 16 values, each of all four lanes
    uint32_t* words = static_cast<uint32_t*>(p.out) + (at - q) * 4 + q;
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i * 4] = out[i];
  } else {
    static_cast<uint4*>(p.out)[at] = {out[0], out[1], out[2], out[3]};
  }
}

__global__ void BiasKernel(CudaMatmulParams p) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= p.m * p.weight.n) return;
  const int64_t n = at % p.weight.n;
  float* y = p.y + at / p.weight.n * p.y_stride + n;
  *y = p.accumulate ? *y + p.bias[n] : p.bias[n];
}

}  // namespace

CudaStatus ConvertX(const CudaExec& exec, const ConvertXParams& params) {
  const int64_t runs_per_row = StreamRowValues(params.k) / 8, runs = params.num_rows * params.num_groups * runs_per_row;
  using enum StreamOrder;
  const bool plain = params.order == kPlain;
  auto* const kernel = !params.half       ? &ConvertKernel<__nv_bfloat16, kPlain, false>
                       : params.fragments ? (plain ? &ConvertKernel<__half, kPlain, true> : &ConvertKernel<__half, kNibble, true>)
                                          : (plain ? &ConvertKernel<__half, kPlain, false> : &ConvertKernel<__half, kNibble, false>);
  LaunchOverlapped(kernel, (runs + kThreads - 1) / kThreads, kThreads, 0, exec.stream, params, runs, static_cast<int>(runs_per_row));
  return CudaLaunched("matmul: %lld x %d rows of %lld values to 16 bits", static_cast<long long>(params.num_rows),
                      params.num_groups, static_cast<long long>(params.k));
}

CudaStatus AddBias(const CudaExec& exec, const CudaMatmulParams& params) {
  const auto grid = static_cast<unsigned>((params.m * params.weight.n + kThreads - 1) / kThreads);
  BiasKernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(exec.stream)>>>(params);
  return CudaLaunched("matmul: bias of %lld columns", static_cast<long long>(params.weight.n));
}

}  // namespace cachalot
