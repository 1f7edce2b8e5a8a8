// Devices, memory, streams, events and graphs behind CudaBackend's first rows: for the library's own sources only.
#pragma once

#include "device/cuda/cuda_backend.h"

namespace cachalot {

// Fills the rows of the table that are no ops.
void FillContextRows(CudaBackend* backend);

}  // namespace cachalot
