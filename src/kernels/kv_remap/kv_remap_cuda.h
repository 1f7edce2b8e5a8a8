// KvRemap on the GPU. It is no row of CudaBackend's table, which is the engine's: libcachalot_cuda.so exports it by name, and
// whoever serves foreign kernels asks for it.
#pragma once

#include "device/cuda/cuda_exec.h"
#include "kernels/kv_remap/kv_remap.h"

namespace cachalot {

struct CudaBackend;
template <typename T>
class Result;

inline constexpr int kCudaKvRemapVersion = 1;  // of KvRemapParams

// Launches and returns. Planes, tables and output are device memory; a table that is not as it must be sets params.fault, and
// what it says is not followed.
using CudaKvRemapFn = CudaStatus (*)(const CudaExec& exec, const KvRemapParams& params);

// In the library that the backend is from.
Result<CudaKvRemapFn> FindCudaKvRemap(const CudaBackend& backend);

}  // namespace cachalot

// Null when the library's KvRemapParams are of another version.
extern "C" cachalot::CudaKvRemapFn cachalot_cuda_kv_remap(int version);
