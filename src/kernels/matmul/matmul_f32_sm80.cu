// Matmul in F32 multiply-adds, for every format and shape: what golden tests compare, and what F32 weights use.
// Few rows of x, or few rows of W (a router): a block a pair of rows of W, its threads along k (bound: W's bytes, then what the
// blocks read from L2). Many: tiles of 64 x 64 (bound: the multiply-adds); rows of codes: as few rows. Each has one order of
// summation whatever the number of rows.
#include <algorithm>

#include "device/cuda/cuda_error.h"
#include "device/cuda/warp.cuh"
#include "kernels/matmul/matmul_launch.h"
#include "kernels/matmul/matmul_problem.cuh"

namespace cachalot {
namespace {

template <bool kAligned>
__device__ __forceinline__ void LoadX4(const float* x, int k, int i, float (&v)[4]) {
  if constexpr (kAligned) {
    const float4 f = *reinterpret_cast<const float4*>(x + i);
    v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = i + j < k ? x[i + j] : 0.0f;
  }
}

__device__ __forceinline__ void Store(const MatmulProblem& p, const MatmulGroupView& group, int row, int n, float sum) {
  if (p.bias != nullptr) sum += p.bias[n];
  float* y = group.y + int64_t{group.first + row} * p.y_stride + n;
  *y = p.accumulate ? *y + sum : sum;
}

constexpr int kDotThreads = 128;
constexpr int kDotRows = 2;   // of W
constexpr int kDotColumns = 8;  // rows of x at a time

template <DType kType, bool kAligned>
__global__ __launch_bounds__(kDotThreads) void DotKernel(MatmulProblem p) {
  __shared__ float sums[kDotThreads / 32][kDotRows * kDotColumns];
  const MatmulGroupView group = GroupOf(p, static_cast<int>(blockIdx.z));
  const int tid = static_cast<int>(threadIdx.x), n0 = static_cast<int>(blockIdx.x) * kDotRows;
  const int n1 = min(n0 + 1, p.n - 1);
  const WeightRow<kType> w0(group.w + n0 * p.layout.row_bytes, p.layout, group.block_scales, p.block_scale_rows, n0, p.k);
  const WeightRow<kType> w1(group.w + n1 * p.layout.row_bytes, p.layout, group.block_scales, p.block_scale_rows, n1, p.k);
  const auto* x = static_cast<const float*>(p.x) + group.x_offset;
  for (int m0 = static_cast<int>(blockIdx.y) * kDotColumns; m0 < group.m; m0 += static_cast<int>(gridDim.y) * kDotColumns) {
    const int rows = min(kDotColumns, group.m - m0);
    const float* x_row[kDotColumns];
#pragma unroll
    for (int c = 0; c < kDotColumns; ++c) {
      x_row[c] = x + XRow(p, group.first + m0 + min(c, rows - 1)) * p.x_stride;
    }
    float sum[kDotRows][kDotColumns] = {};
    for (int i = tid * 4; i < p.k; i += kDotThreads * 4) {
      float a[4], b[4];
      w0.Load4(i, a);
      w1.Load4(i, b);
#pragma unroll
      for (int c = 0; c < kDotColumns; ++c) {
        if (c >= rows) break;
        float v[4];
        LoadX4<kAligned>(x_row[c], p.k, i, v);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sum[0][c] = fmaf(a[j], v[j], sum[0][c]);
          sum[1][c] = fmaf(b[j], v[j], sum[1][c]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kDotRows; ++r) {
#pragma unroll
      for (int c = 0; c < kDotColumns; ++c) {
        if (c >= rows) break;
        const float total = WarpSum(sum[r][c]);
        if (tid % 32 == 0) sums[tid / 32][r * kDotColumns + c] = total;
      }
    }
    __syncthreads();
    if (tid < kDotRows * kDotColumns) {
      const int r = tid / kDotColumns, c = tid % kDotColumns;
      if (c < rows && n0 + r < p.n) {
        float total = 0;
        for (int warp = 0; warp < kDotThreads / 32; ++warp) total += sums[warp][tid];
        Store(p, group, m0 + c, n0 + r, total);
      }
    }
    __syncthreads();
  }
}

constexpr int kTile = 64;
constexpr int kTileK = 32;
constexpr int kTileThreads = 256;
constexpr int kPitch = kTile + 4;

template <DType kType, bool kAligned>
__global__ __launch_bounds__(kTileThreads) void TileKernel(MatmulProblem p) {
  __shared__ __align__(16) float ws[kTileK][kPitch], xs[kTileK][kPitch];
  const MatmulGroupView group = GroupOf(p, static_cast<int>(blockIdx.z));
  const int tid = static_cast<int>(threadIdx.x), n0 = static_cast<int>(blockIdx.x) * kTile;
  // Each thread loads 8 values of one row of either tile: k0 + 4 quad .. and k0 + 16 + 4 quad ..
  const int row = tid % kTile, quad = tid / kTile;
  const int n = min(n0 + row, p.n - 1);
  const WeightRow<kType> w(group.w + n * p.layout.row_bytes, p.layout, group.block_scales, p.block_scale_rows, n, p.k);
  const int tx = tid % 16 * 4, ty = tid / 16 * 4;
  for (int m0 = static_cast<int>(blockIdx.y) * kTile; m0 < group.m; m0 += static_cast<int>(gridDim.y) * kTile) {
    const float* x = static_cast<const float*>(p.x) + group.x_offset +
                     XRow(p, group.first + min(m0 + row, group.m - 1)) * p.x_stride;
    float sum[4][4] = {};
    float wv[2][4], xv[2][4];
    const auto load = [&](int k0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = k0 + half * 16 + quad * 4;
#pragma unroll
        for (int j = 0; j < 4; ++j) wv[half][j] = xv[half][j] = 0;
        if (i < p.k) {
          w.Load4(i, wv[half]);
          LoadX4<kAligned>(x, p.k, i, xv[half]);
        }
      }
    };
    load(0);
    for (int k0 = 0; k0 < p.k; k0 += kTileK) {
      __syncthreads();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          ws[half * 16 + quad * 4 + j][row] = wv[half][j];
          xs[half * 16 + quad * 4 + j][row] = xv[half][j];
        }
      }
      __syncthreads();
      load(k0 + kTileK);
#pragma unroll
      for (int kk = 0; kk < kTileK; ++kk) {
        const float4 a = *reinterpret_cast<const float4*>(&xs[kk][ty]);
        const float4 b = *reinterpret_cast<const float4*>(&ws[kk][tx]);
        const float av[4] = {a.x, a.y, a.z, a.w}, bv[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(av[i], bv[j], sum[i][j]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (m0 + ty + i < group.m && n0 + tx + j < p.n) Store(p, group, m0 + ty + i, n0 + tx + j, sum[i][j]);
      }
    }
    __syncthreads();  // the last round's tiles have been read
  }
}

template <DType kType, bool kAligned>
void Launch(const CudaExec& exec, const MatmulProblem& p, bool dot) {
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  const int columns = dot ? kDotColumns : kTile, rows = dot ? kDotRows : kTile;
  // Experts' rows are known on the device only: a block walks over all of its expert.
  const int along_m = p.expert_begin != nullptr ? 1 : std::min((p.m + columns - 1) / columns, 65535);
  const dim3 grid(static_cast<unsigned>((p.n + rows - 1) / rows), static_cast<unsigned>(along_m),
                  static_cast<unsigned>(p.num_groups));
  if (dot) {
    DotKernel<kType, kAligned><<<grid, kDotThreads, 0, stream>>>(p);
  } else if constexpr (!IsCodeRow(kType)) {
    TileKernel<kType, kAligned><<<grid, kTileThreads, 0, stream>>>(p);
  }
}

template <DType kType>
void LaunchType(const CudaExec& exec, const MatmulProblem& p, bool dot, bool aligned) {
  if (aligned) {
    Launch<kType, true>(exec, p, dot);
  } else {
    Launch<kType, false>(exec, p, dot);
  }
}

// Microseconds of either kernel, as seen on an H200: dot products read their rows from L2 at about 4 TB/s; a tile takes a block 57
// us for 1,000 values of k, and there may be few tiles. A router of 256 x 7168 for 64 tokens: 73 against 409.
bool DotIsFaster(const CudaExec& exec, const MatmulProblem& p) {
  if (p.m <= 16) return true;
  if (p.num_groups > 1 || p.expert_begin != nullptr) return false;
  const auto along = [](int count, int step) { return static_cast<double>((count + step - 1) / step); };
  const double dot_us = along(p.n, kDotRows) * along(p.m, kDotColumns) * (kDotRows + kDotColumns) * p.k * 4 / 4e6;
  const double waves = along(static_cast<int>(along(p.n, kTile) * along(p.m, kTile)), std::max(exec.num_sms, 1));
  return dot_us < waves * p.k * 0.057;
}

}  // namespace

CudaStatus LaunchF32Matmul(const CudaExec& exec, DType dtype, const MatmulProblem& p) {
  const bool dot = exec.deterministic || DotIsFaster(exec, p);
  const bool aligned = HasAlignedX(p);
  switch (dtype) {
    case DType::kF32:
      LaunchType<DType::kF32>(exec, p, dot, aligned);
      break;
    case DType::kF16:
      LaunchType<DType::kF16>(exec, p, dot, aligned);
      break;
    case DType::kBF16:
      LaunchType<DType::kBF16>(exec, p, dot, aligned);
      break;
    case DType::kFP8E4M3:
      LaunchType<DType::kFP8E4M3>(exec, p, dot, aligned);
      break;
    case DType::kQ8_0:
      LaunchType<DType::kQ8_0>(exec, p, dot, aligned);
      break;
    case DType::kQ4_0:
      LaunchType<DType::kQ4_0>(exec, p, dot, aligned);
      break;
    case DType::kQ4_1:
      LaunchType<DType::kQ4_1>(exec, p, dot, aligned);
      break;
    case DType::kQ5_0:
      Launch<DType::kQ5_0, false>(exec, p, true);
      break;
    case DType::kQ5_1:
      Launch<DType::kQ5_1, false>(exec, p, true);
      break;
    case DType::kQ2_K:
      Launch<DType::kQ2_K, false>(exec, p, true);
      break;
    case DType::kQ3_K:
      Launch<DType::kQ3_K, false>(exec, p, true);
      break;
    case DType::kQ4_K:
      Launch<DType::kQ4_K, false>(exec, p, true);
      break;
    case DType::kQ5_K:
      Launch<DType::kQ5_K, false>(exec, p, true);
      break;
    case DType::kQ6_K:
      Launch<DType::kQ6_K, false>(exec, p, true);
      break;
    case DType::kIQ4_NL:
      Launch<DType::kIQ4_NL, false>(exec, p, true);
      break;
    case DType::kIQ4_XS:
      Launch<DType::kIQ4_XS, false>(exec, p, true);
      break;
    default:
      return CudaFail(CudaFault::kUnsupported, "matmul: no kernel reads weights of type number %d", static_cast<int>(dtype));
  }
  return CudaLaunched("F32 matmul of %d groups, m %d, n %d, k %d", p.num_groups, p.m, p.n, p.k);
}

}  // namespace cachalot
