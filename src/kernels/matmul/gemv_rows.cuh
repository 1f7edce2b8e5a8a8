// How the decode kernel (gemv.cuh) brings its rows of x into shared memory, by itself or with the RMS norm in front of it, and
// how it writes its sums, as they are or two of them through SwiGLU.
//
// Invariant: bit for bit what RmsNorm, the plain kernel and SwiGlu leave one after the other.
#pragma once

#include "device/cuda/norm_sum.cuh"
#include "device/cuda/tensor_core.cuh"
#include "kernels/matmul/gemv_shape.h"
#include "kernels/matmul/glu_store.cuh"
#include "kernels/matmul/matmul_problem.cuh"
#include "kernels/matmul/stream_format.cuh"

namespace cachalot {
namespace {

inline constexpr int kGemvMostColumns = 8;

// The inverse RMS of the block's rows of x.
struct GemvNorms {
  float squares[kGemvMostColumns][kNormWarps];
  float inverses[kGemvMostColumns];
};
__device__ __forceinline__ void FindNorms(const MatmulProblem& p, const MatmulGroupView& group, GemvNorms* norms) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warps = static_cast<int>(blockDim.x) / 32;
  const float* x = static_cast<const float*>(p.x) + group.x_offset;
  for (int part = static_cast<int>(threadIdx.x) / 32; part < group.m * kNormWarps; part += warps) {
    const int column = part / kNormWarps, of = part % kNormWarps;
    const auto* row = reinterpret_cast<const float4*>(x + XRow(p, group.first + column) * p.x_stride);
    const float sum = NormWarpSum(row, p.k / 4, of * 32 + lane);
    if (lane == 0) norms->squares[column][of] = sum;
  }
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x) / 32; column < group.m; column += warps) {
    const float sum = WarpSum(lane < kNormWarps ? norms->squares[column][lane] : 0.0f);
    if (lane == 0) norms->inverses[column] = InverseRms(sum, p.k, p.norm_eps);
  }
  __syncthreads();
}

// The block's rows of x to 16 bits in shared memory, in the order in which the format unpacks; zero from k on.
// `norms`: of the rows, or null.
template <DType kType, bool kNorm>
__device__ __forceinline__ void StageX(const MatmulProblem& p, const MatmulGroupView& group, bool aligned, int row_bytes,
                                       const GemvNorms* norms, unsigned char* out) {
  constexpr bool kNibble = StreamFormat<kType>::kOrder == StreamOrder::kNibble;
  using Element = typename StreamFormat<kType>::Element;
  constexpr int kBatch = kNorm ? 2 : 4;  // loads under way
  const int pieces = (row_bytes - kGemvXGap) / 16, count = group.m * pieces;
  const float* x = static_cast<const float*>(p.x) + group.x_offset;
#pragma unroll 1
  for (int base = static_cast<int>(threadIdx.x); base < count; base += static_cast<int>(blockDim.x) * kBatch) {
    float v[kBatch][2][4];
    float4 weight[kNorm ? kBatch : 1][2];  // of the norm: with x, not behind it
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int at = base + j * static_cast<int>(blockDim.x), column = at / pieces, piece = at % pieces;
      const float* row = at < count ? x + XRow(p, group.first + column) * p.x_stride : x;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = kNibble ? piece / 4 * 32 + half * 16 + piece % 4 * 4 : piece * 8 + half * 4;
        if constexpr (kNorm) {
          if (norms != nullptr && at < count && i < p.k) weight[j][half] = *reinterpret_cast<const float4*>(p.norm_weight + i);
        }
        if (aligned) {
          const float4 f = at < count && i < p.k ? *reinterpret_cast<const float4*>(row + i) : float4{};
          v[j][half][0] = f.x, v[j][half][1] = f.y, v[j][half][2] = f.z, v[j][half][3] = f.w;
        } else {
#pragma unroll
          for (int c = 0; c < 4; ++c) v[j][half][c] = at < count && i + c < p.k ? row[i + c] : 0.0f;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int at = base + j * static_cast<int>(blockDim.x), column = at / pieces, piece = at % pieces;
      if (at >= count) break;
      if constexpr (kNorm) {
        if (norms != nullptr) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int i = kNibble ? piece / 4 * 32 + half * 16 + piece % 4 * 4 : piece * 8 + half * 4;
            if (i >= p.k) continue;
            float(&f)[4] = v[j][half];
            const float4 scaled = ScaledByNorm({f[0], f[1], f[2], f[3]}, norms->inverses[column], weight[j][half]);
            f[0] = scaled.x, f[1] = scaled.y, f[2] = scaled.z, f[3] = scaled.w;
          }
        }
      }
      uint4 packed;
      uint32_t* words = &packed.x;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&f)[4] = v[j][half];
        words[half * 2] = PackX(f[0], f[kNibble ? 2 : 1], Element{});
        words[half * 2 + 1] = PackX(f[kNibble ? 1 : 2], f[3], Element{});
      }
      *reinterpret_cast<uint4*>(out + column * row_bytes + piece * 16) = packed;
    }
  }
}

// The same from a copy in 16 bits, which has whole rows: long ones take the registers' way in several rounds of latency.
__device__ __forceinline__ bool HasHalfX(const MatmulProblem& p) {
  return p.x_half.data != nullptr && p.expert_begin == nullptr && p.x_rows == nullptr && p.num_groups == 1;
}
__device__ __forceinline__ void StageHalfX(const MatmulProblem& p, int rows, int row_bytes, uint32_t out) {
  const auto* x = static_cast<const std::byte*>(p.x_half.data);
  const int pieces = (row_bytes - kGemvXGap) / 16;
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    const std::byte* from = x + row * p.x_half.stride * 2;
#pragma unroll 4
    for (int at = static_cast<int>(threadIdx.x); at < pieces; at += static_cast<int>(blockDim.x)) {
      CopyAsync16(out + row * row_bytes + at * 16, from + at * 16, true);
    }
  }
  CommitAsync();
  WaitAsync<0>();
}

// Sums of the warps, by columns and rows.
struct GemvPartials {
  float* values;  // [splits, columns, pass_tiles * 16]
  int columns, rows;
  __device__ float* At(int split, int column) const { return values + (split * columns + column) * rows; }
};

// Rows [n0, n0 + rows) of W.
__device__ __forceinline__ void StoreSums(const MatmulProblem& p, const MatmulGroupView& group, const GemvPartials& partials,
                                          int splits, int n0, int rows) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * group.m; i += static_cast<int>(blockDim.x)) {
    const int column = i / rows, row = i % rows, n = n0 + row;
    float sum = 0;
#pragma unroll 4
    for (int s = 0; s < splits; ++s) sum += partials.At(s, column)[row];
    if (p.bias != nullptr) sum += p.bias[n];
    float* y = group.y + int64_t{group.first + column} * p.y_stride + n;
    *y = p.accumulate ? *y + sum : sum;
    if (p.y_half.data != nullptr) static_cast<uint16_t*>(p.y_half.data)[(group.first + column) * p.y_half.stride + (group.y - p.y) + n] = ClampedHalf(sum);
  }
}

// SwiGLU of gates [n0, n0 + gates) of W and the ups that lie behind all gates. In a tile of sums, 8 gates and then their ups.
__device__ __forceinline__ void StoreGlu(const MatmulProblem& p, const MatmulGroupView& group, const GemvPartials& partials,
                                         int splits, int n0, int gates) {
  for (int i = static_cast<int>(threadIdx.x); i < gates * group.m; i += static_cast<int>(blockDim.x)) {
    const int column = i / gates, at = i % gates, row = at / 8 * kGemvTileRows + at % 8;
    float gate = 0, up = 0;
#pragma unroll 4
    for (int s = 0; s < splits; ++s) {
      gate += partials.At(s, column)[row];
      up += partials.At(s, column)[row + 8];
    }
    StoreGluValue(p, group.y, group.first + column, n0 + at, SwiGluValue(gate, up));
  }
}

}  // namespace
}  // namespace cachalot
