// Many copies between page-locked memory of the host and the device in one call of the driver: a fifth of the time on the host, and on the device no
// gap between them, which pieces below a megabyte feel.
#pragma once

#include <cstddef>

#include "device/cuda/cuda_library.h"

namespace cachalot {

// All one way, in any order, behind what the stream has to do. kUnsupported: the driver cannot, and nothing has been begun.
using CudaCopyMany = CudaStatus (*)(void* const* to, const void* const* from, const size_t* bytes, size_t count, bool into_device, void* stream);

// Null: the library has none.
CudaCopyMany FindCopyMany(const CudaBackend& backend);

}  // namespace cachalot
