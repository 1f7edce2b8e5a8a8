#include "device/cuda/cuda_error.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace cachalot {
namespace {

thread_local CudaFailure last_failure;

}  // namespace

CudaStatus CudaFail(CudaFault fault, const char* format, ...) {
  last_failure.fault = fault;
  va_list args;
  va_start(args, format);
  std::vsnprintf(last_failure.message, sizeof(last_failure.message), format, args);
  va_end(args);
  return &last_failure;
}

CudaStatus CudaLaunched(const char* format, ...) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return nullptr;
  char place[360];
  va_list args;
  va_start(args, format);
  std::vsnprintf(place, sizeof(place), format, args);
  va_end(args);
  return CudaFail(CudaFault::kDevice, "%s: %s", place, cudaGetErrorString(error));
}

CudaStatus CudaChecked(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();  // an error that is not sticky must not be found by the next launch
  const CudaFault fault = error == cudaErrorMemoryAllocation ? CudaFault::kExhausted : CudaFault::kDevice;
  return CudaFail(fault, "%s: %s", call, cudaGetErrorString(error));
}

}  // namespace cachalot
