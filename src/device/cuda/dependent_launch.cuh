// Programmatic dependent launch (sm_90): a kernel starts while those before it on the stream still end, does what depends
// on none of them, and then waits. In a captured graph too.
//
// Only where sm_90a code runs: code made from compute_80 PTX does not wait.
//
// Rule: a kernel launched by LaunchOverlapped calls WaitForEarlierKernels, in every block, before it reads what any earlier
// kernel writes and before it writes what any earlier kernel touches.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_tune.h"

namespace cachalot {

// Until all kernels before this one have ended and their writes are to be seen.
__device__ __forceinline__ void WaitForEarlierKernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// The next kernel may start as soon as every block of this one has said so and there is room. It still waits for our end.
__device__ __forceinline__ void LetNextKernelStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

// The bits of CudaTune::late, in its order; a matmul for few rows is a matmul.
enum class LaunchRole { kMatmul, kAttention, kNorm, kSwiglu, kRope, kRest, kDecodeMatmul };

// The settings in force (cuda_context.cc).
const CudaTune& CurrentTune();

template <typename... Params, typename... Args>
void LaunchConfigured(void (*kernel)(Params...), dim3 grid, int threads, int64_t shared_bytes, void* stream, bool overlaps,
                      Args&&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = overlaps ? 1 : 0;
  (void)cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

// A failure is found by CudaLaunched.
template <LaunchRole kRole = LaunchRole::kRest, typename... Params, typename... Args>
void LaunchOverlapped(void (*kernel)(Params...), dim3 grid, int threads, int64_t shared_bytes, void* stream, Args&&... args) {
  if constexpr (kRole == LaunchRole::kDecodeMatmul) {  // two of its blocks on an SM
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  }
  constexpr auto kBit = static_cast<uint32_t>(kRole == LaunchRole::kDecodeMatmul ? LaunchRole::kMatmul : kRole);
  const bool wanted = (CurrentTune().late >> kBit & 1) == 0;
  const bool overlaps = wanted && CurrentCard().RunsHopperCode();
  LaunchConfigured(kernel, grid, threads, shared_bytes, stream, overlaps, std::forward<Args>(args)...);
}

}  // namespace cachalot
