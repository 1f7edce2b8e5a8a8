// CudaCopyMany (cuda_copies.h) in libcachalot_cuda.so.
#include <cuda_runtime_api.h>

#include "device/cuda/cuda_error.h"

extern "C" __attribute__((visibility("default"))) cachalot::CudaStatus cachalot_cuda_copy_many(void* const* to, const void* const* from,
                                                                                              const size_t* bytes, size_t count, bool into_device,
                                                                                              void* stream) {
#if CUDART_VERSION >= 13000
  cudaMemcpyAttributes how = {};
  how.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  how.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  how.srcLocHint.type = into_device ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
  how.dstLocHint.type = into_device ? cudaMemLocationTypeDevice : cudaMemLocationTypeHost;
  size_t first = 0;  // of those that are made so: all
  const cudaError_t error = cudaMemcpyBatchAsync(to, from, bytes, count, &how, &first, 1, static_cast<cudaStream_t>(stream));
  if (error != cudaErrorCallRequiresNewerDriver && error != cudaErrorNotSupported) {
    return cachalot::CudaChecked(error, "cudaMemcpyBatchAsync");
  }
  cudaGetLastError();
#endif
  return cachalot::CudaFail(cachalot::CudaFault::kUnsupported, "no copies in one call with this driver");
}
