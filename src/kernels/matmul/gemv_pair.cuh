// Two matmuls of few rows in one launch, so that the blocks of both fill the card together: of experts, and a dense one beside it
// (the shared expert). Each block does what the decode kernel's would (gemv.cuh): the same bits.
#pragma once

#include "kernels/matmul/gemv.cuh"
#include "kernels/matmul/gemv_pair_params.h"

namespace cachalot {
namespace {

// The dense one's blocks come first: they load before the kernels in front have ended.
template <DType kType>
__global__ __launch_bounds__(kGemvWarps * 32, GemvStage<kType>::kBlocksPerSm) void GemvPairKernel(
    const __grid_constant__ MatmulProblem dense, const __grid_constant__ GemvShape dense_shape, bool dense_aligned,
    const __grid_constant__ MatmulProblem experts, const __grid_constant__ GemvShape experts_shape, bool experts_aligned) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ GemvMemory<true> memory;
  LetNextKernelStart();
  const int block = static_cast<int>(blockIdx.x);
  if (block < dense_shape.blocks) {
    RunGemvBlock<kType, true>(dense, dense_shape, dense_aligned, block, shared, &memory);
  } else {
    RunGemvBlock<kType, true>(experts, experts_shape, experts_aligned, block - dense_shape.blocks, shared, &memory);
  }
}

}  // namespace

template <DType kType>
CudaStatus LaunchGemvPair(const CudaExec& exec, const GemvPair& pair) {
  const int64_t shared_bytes = std::max(GemvLaunchBytes(kType, pair.dense, pair.dense_shape),
                                        GemvLaunchBytes(kType, pair.experts, pair.experts_shape));
  auto* kernel = &GemvPairKernel<kType>;
  if (CudaStatus failure = AllowSharedBytes(kernel, shared_bytes, "moe_pair")) return failure;
  const int64_t blocks = pair.dense_shape.blocks + pair.slots * pair.experts_shape.blocks;
  LaunchOverlapped<LaunchRole::kDecodeMatmul>(kernel, blocks, pair.dense_shape.teams * pair.dense_shape.splits * 32, shared_bytes,
                                              exec.stream, pair.dense, pair.dense_shape, HasAlignedX(pair.dense), pair.experts,
                                              pair.experts_shape, HasAlignedX(pair.experts));
  return CudaLaunched("moe_pair of %lld pairs, n %d, k %d, and of m %d, n %d, k %d", static_cast<long long>(pair.slots), pair.experts.n,
                      pair.experts.k, pair.dense.m, pair.dense.n, pair.dense.k);
}

}  // namespace cachalot
