// How the library's functions report a failure: for its own sources only.
#pragma once

#include <cuda_runtime_api.h>

#include "device/cuda/cuda_exec.h"

namespace cachalot {

// printf-style; the text is kept per thread.
__attribute__((format(printf, 2, 3))) CudaStatus CudaFail(CudaFault fault, const char* format, ...);

// After the last launch of an op: null, or a failure that carries CUDA's words behind the op's.
__attribute__((format(printf, 1, 2))) CudaStatus CudaLaunched(const char* format, ...);

// For runtime calls. Running out of memory is kExhausted and leaves no sticky error.
CudaStatus CudaChecked(cudaError_t error, const char* call);

}  // namespace cachalot
