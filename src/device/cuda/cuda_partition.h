// Two streams with SMs of their own: the device's are parted (green contexts of a driver for CUDA 13). For measuring what
// running two steps at once would bring (`cachalot bench --beside`); the engine has one stream that computes.
#pragma once

#include <array>
#include <cstdint>

#include "device/cuda/cuda_library.h"

namespace cachalot {

struct CudaPart {
  void* stream = nullptr;
  int32_t num_sms = 0;
};

// The first part has `first_sms` SMs, rounded up to what the card can part (8 on Hopper), the second the rest. Streams and parts stay
// until the process ends; asked for again, they are the same. The first part's stream has the higher priority.
Result<std::array<CudaPart, 2>> PartSms(const CudaBackend& backend, int32_t first_sms);

}  // namespace cachalot
