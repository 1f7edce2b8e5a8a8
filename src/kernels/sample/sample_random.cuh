// UniformAt of sample.cc on the device, as a fraction of 2^53.
#pragma once

#include <cstdint>

namespace cachalot {

__device__ __forceinline__ uint64_t MixBits(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
__device__ __forceinline__ uint64_t UniformBits(uint64_t seed, int64_t position) {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
  return MixBits(MixBits(seed + kGolden) + kGolden * (static_cast<uint64_t>(position) + 1)) >> 11;
}

}  // namespace cachalot
