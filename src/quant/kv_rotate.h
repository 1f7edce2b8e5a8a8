// The Hadamard rotation of keys and queries: sums and differences that spread a few large channels over all of them.
//
// A vector is rotated in blocks of `length` values (a power of two that divides the vector); a length of 1 leaves it as
// it is. The matrix is not normalised: applied twice it multiplies by `length`, and (H a) · (H b) = length · (a · b).
// Readers put the factor, a power of two, where they scale anyway.
#pragma once

#include <cstdint>

namespace cachalot {

inline constexpr int32_t kMaxKvRotation = 128;

// The largest block that fits.
inline int32_t KvRotationLength(int32_t dim) {
  int32_t length = 1;
  while (length < kMaxKvRotation && dim % (2 * length) == 0) length *= 2;
  return length;
}

inline void RotateKv(float* x, int32_t dim, int32_t length) {
  for (int32_t block = 0; block < dim; block += length) {
    for (int32_t half = 1; half < length; half *= 2) {
      for (int32_t i = 0; i < length; i += 2 * half) {
        for (int32_t j = block + i; j < block + i + half; ++j) {
          const float a = x[j], b = x[j + half];
          x[j] = a + b;
          x[j + half] = a - b;
        }
      }
    }
  }
}

}  // namespace cachalot
