// Programmatic dependent launch (sm_90): a kernel starts while those before it on the stream still end, does what depends
// on none of them, and then waits. In a captured graph too.
//
// Rule: a kernel launched by LaunchOverlapped calls WaitForEarlierKernels, in every block, before it reads what any earlier
// kernel writes and before it writes what any earlier kernel touches.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

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

// A failure is found by CudaLaunched.
template <typename... Params, typename... Args>
void LaunchOverlapped(void (*kernel)(Params...), int64_t grid, int threads, int64_t shared_bytes, void* stream, Args&&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  (void)cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

}  // namespace cachalot
