// SwiGlu: four values a thread where everything is aligned, else one. Bound: 12 bytes a value.
#include "device/cuda/clamped_half.cuh"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/swiglu_value.cuh"
#include "kernels/swiglu/swiglu.h"

namespace cachalot {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ uint16_t* HalfRow(const SwiGluParams& p, int64_t row) {
  return static_cast<uint16_t*>(p.y_half.data) + row * p.y_half.stride;
}

__global__ void VectorKernel(SwiGluParams p, int64_t vectors) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors; i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / (p.dim / 4), at = i % (p.dim / 4);
    const float4 gate = reinterpret_cast<const float4*>(p.gate + row * p.x_stride)[at];
    const float4 up = reinterpret_cast<const float4*>(p.up + row * p.x_stride)[at];
    const float4 y = {SwiGluValue(gate.x, up.x), SwiGluValue(gate.y, up.y), SwiGluValue(gate.z, up.z), SwiGluValue(gate.w, up.w)};
    reinterpret_cast<float4*>(p.y + row * p.y_stride)[at] = y;
    if (p.y_half.data != nullptr) reinterpret_cast<uint2*>(HalfRow(p, row))[at] = ClampedHalf4(y);
  }
}

__global__ void GenericKernel(SwiGluParams p, int64_t values) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < values; i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / p.dim, at = i % p.dim;
    const float y = SwiGluValue(p.gate[row * p.x_stride + at], p.up[row * p.x_stride + at]);
    p.y[row * p.y_stride + at] = y;
    if (p.y_half.data != nullptr) HalfRow(p, row)[at] = ClampedHalf(y);
  }
}

}  // namespace

CudaStatus CudaSwiGlu(const CudaExec& exec, const SwiGluParams& params) {
  const int64_t values = params.m * params.dim;
  if (values == 0) return nullptr;
  const auto whole = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  const bool aligned = params.dim % 4 == 0 && params.x_stride % 4 == 0 && params.y_stride % 4 == 0 &&
                       whole(params.gate) && whole(params.up) && whole(params.y);
  const int64_t items = aligned ? values / 4 : values;
  const int64_t most_blocks = int64_t{exec.num_sms > 0 ? exec.num_sms : 132} * 8;
  const int64_t blocks = (items + kThreads - 1) / kThreads;
  const auto grid = static_cast<unsigned>(blocks < most_blocks ? blocks : most_blocks);
  if (aligned) {
    LaunchOverlapped<LaunchRole::kSwiglu>(&VectorKernel, grid, kThreads, 0, exec.stream, params, items);
  } else {
    GenericKernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(exec.stream)>>>(params, items);
  }
  return CudaLaunched("swiglu [%lld, %lld]", static_cast<long long>(params.m), static_cast<long long>(params.dim));
}

}  // namespace cachalot
