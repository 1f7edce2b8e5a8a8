// RmsNorm: a row is read once into registers (up to kMaxVectors x 4 values a thread), summed, scaled and written. Short
// rows take a warp each, long ones a block. The order of summation depends on dim alone.
// Bound: 8 bytes a value.
#include "device/cuda/clamped_half.cuh"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/norm_sum.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/rms_norm/rms_norm.h"

namespace cachalot {
namespace {

constexpr int kBlockThreads = kNormWarps * 32;
constexpr int kMaxVectors = 8;  // block: rows of up to 8192 values stay in registers

struct RowPointers {
  const float* x;
  float* y;
  __device__ RowPointers(const RmsNormParams& p, int64_t row) {
    const int64_t token = row / p.num_heads, head = row % p.num_heads, from = p.x_rows != nullptr ? p.x_rows[token] : token;
    x = from < 0 ? nullptr : p.x + from * p.token_stride_x + head * p.head_stride_x;
    y = p.y + token * p.token_stride_y + head * p.head_stride_y;
  }
};

// Of one head.
__device__ __forceinline__ uint16_t* HalfRow(const RmsNormParams& p, int64_t row) {
  return p.y_half.data == nullptr ? nullptr : static_cast<uint16_t*>(p.y_half.data) + row * p.y_half.stride;
}

// dim and every stride a multiple of 4, pointers aligned; kThreads (32: a warp a row) threads a row.
template <int kThreads>
__global__ void VectorKernel(RmsNormParams p, int64_t num_rows) {
  constexpr int kRowsPerBlock = kThreads == 32 ? kBlockThreads / 32 : 1;
  __shared__ float scratch[32];
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock + (kThreads == 32 ? threadIdx.x / 32 : 0);
  if (row >= num_rows) return;  // whole warps; a block of one row has none to leave out
  const int t = threadIdx.x % kThreads;
  const RowPointers pointers(p, row);
  if (pointers.x == nullptr) return;  // as above
  const auto* x = reinterpret_cast<const float4*>(pointers.x);
  auto* y = reinterpret_cast<float4*>(pointers.y);
  const auto* weight = reinterpret_cast<const float4*>(p.weight);
  const int vectors = static_cast<int>(p.dim / 4);
  float4 kept[kMaxVectors];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const int at = t + i * kThreads;
    if (at < vectors) {
      kept[i] = x[at];
      sum += SquareSum(kept[i]);
    }
  }
  for (int at = t + kMaxVectors * kThreads; at < vectors; at += kThreads) sum += SquareSum(x[at]);
  sum = kThreads == 32 ? WarpSum(sum) : BlockSum(sum, scratch);
  const float inverse = InverseRms(sum, p.dim, p.eps);
  auto* half = reinterpret_cast<uint2*>(HalfRow(p, row));
  const auto write = [&](int at, float4 value) {
    const float4 scaled = ScaledByNorm(value, inverse, weight[at]);
    y[at] = scaled;
    if (half != nullptr) half[at] = ClampedHalf4(scaled);
  };
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const int at = t + i * kThreads;
    if (at < vectors) write(at, kept[i]);
  }
  for (int at = t + kMaxVectors * kThreads; at < vectors; at += kThreads) write(at, x[at]);
}

// Every shape: a warp a row, a value at a time.
__global__ void GenericKernel(RmsNormParams p, int64_t num_rows) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int64_t row = int64_t{blockIdx.x} * (kBlockThreads / 32) + threadIdx.x / 32;
  if (row >= num_rows) return;
  const int lane = threadIdx.x % 32;
  const RowPointers pointers(p, row);
  if (pointers.x == nullptr) return;
  float sum = 0;
  for (int64_t i = lane; i < p.dim; i += 32) sum += pointers.x[i] * pointers.x[i];
  const float inverse = InverseRms(WarpSum(sum), p.dim, p.eps);
  uint16_t* half = HalfRow(p, row);
  for (int64_t i = lane; i < p.dim; i += 32) {
    const float scaled = pointers.x[i] * inverse * p.weight[i];
    pointers.y[i] = scaled;
    if (half != nullptr) half[i] = ClampedHalf(scaled);
  }
}

bool Aligned(const RmsNormParams& p) {
  const auto whole = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  return p.dim % 4 == 0 && p.token_stride_x % 4 == 0 && p.head_stride_x % 4 == 0 && p.token_stride_y % 4 == 0 &&
         p.head_stride_y % 4 == 0 && whole(p.x) && whole(p.y) && whole(p.weight);
}

}  // namespace

CudaStatus CudaRmsNorm(const CudaExec& exec, const RmsNormParams& params) {
  const int64_t rows = params.num_tokens * params.num_heads;
  if (rows == 0) return nullptr;
  constexpr int kRowsPerBlock = kBlockThreads / 32;
  const auto grid = static_cast<unsigned>((rows + kRowsPerBlock - 1) / kRowsPerBlock);
  if (!Aligned(params)) {
    LaunchOverlapped<LaunchRole::kNorm>(&GenericKernel, grid, kBlockThreads, 0, exec.stream, params, rows);
  } else if (params.dim < kNormLeastDim) {
    LaunchOverlapped<LaunchRole::kNorm>(&VectorKernel<32>, grid, kBlockThreads, 0, exec.stream, params, rows);
  } else {
    LaunchOverlapped<LaunchRole::kNorm>(&VectorKernel<kBlockThreads>, rows, kBlockThreads, 0, exec.stream, params, rows);
  }
  return CudaLaunched("rms_norm [%lld, %lld, %lld]", static_cast<long long>(params.num_tokens),
                      static_cast<long long>(params.num_heads), static_cast<long long>(params.dim));
}

}  // namespace cachalot
