// Shared by the matmul tests and the bench: random weights of any type, as a file would hold them. Test-only.
#pragma once

#include <vector>

#include "kernels/common/testing.h"
#include "kernels/matmul/matmul.h"
#include "quant/format.h"

namespace cachalot {

// k rounded up to whole blocks of the type.
inline int64_t WholeBlocks(DType dtype, int64_t k) {
  const int64_t size = GetDTypeInfo(dtype).block_size;
  return (k + size - 1) / size * size;
}

// A matrix [n, k] with what a MatrixPart points to.
struct TestWeight {
  DType dtype = DType::kF32;
  int64_t n = 0;
  int64_t k = 0;
  std::vector<std::byte> bytes;
  std::vector<float> scales;  // FP8: [ceil(n/128), ceil(k/128)]

  TestWeight(DType dtype, int64_t n, int64_t k, uint64_t seed) : dtype(dtype), n(n), k(k) {
    TestRng rng(seed);
    const bool fp8 = dtype == DType::kFP8E4M3;
    const std::vector<float> values = rng.NormalVector(n * k, fp8 ? 30.0f : 0.5f);
    bytes.resize(DTypeBytes(dtype, n * k));
    FindQuantFormat(dtype)->encode(values.data(), bytes.data(), n * k);
    if (fp8) {
      scales.resize((n + 127) / 128 * ((k + 127) / 128));
      for (float& scale : scales) scale = rng.Uniform(0.005f, 0.02f);
    }
  }

  MatrixPart part() const { return {dtype, n, bytes.data(), scales.empty() ? nullptr : scales.data()}; }

  PackedMatrix Pack(Isa isa) const {
    const MatrixPart one = part();
    return PackMatrix({&one, 1}, k, {.isa = isa}).value();
  }

  // [n, k], block scales applied.
  std::vector<float> Decoded() const {
    std::vector<float> out(n * k);
    FindQuantFormat(dtype)->decode(bytes.data(), out.data(), n * k);
    for (int64_t i = 0; !scales.empty() && i < n * k; ++i) {
      out[i] *= scales[i / k / 128 * ((k + 127) / 128) + i % k / 128];
    }
    return out;
  }
};

}  // namespace cachalot
