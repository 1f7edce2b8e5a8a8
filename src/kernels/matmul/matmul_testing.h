// Shared by the matmul tests and the bench: random weights of any type, as a file would hold them. Test-only.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/common/testing.h"
#include "kernels/matmul/matmul.h"
#include "quant/block_codes.h"
#include "quant/format.h"
#include "tensor/float_convert.h"

namespace cachalot {

// k rounded up to whole blocks of the type.
inline int64_t WholeBlocks(DType dtype, int64_t k) {
  const int64_t size = GetDTypeInfo(dtype).block_size;
  return (k + size - 1) / size * size;
}

// y = x Wᵀ by its definition, apart from the code under test. x [m, k], w [n, k].
inline std::vector<float> Definition(const std::vector<float>& x, const std::vector<float>& w, int64_t m, int64_t n,
                              int64_t k) {
  std::vector<float> y(m * n);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < k; ++p) sum += double{x[i * k + p]} * double{w[j * k + p]};
      y[i * n + j] = static_cast<float>(sum);
    }
  }
  return y;
}

// A row of blocks with any codes and any scales, of the size that files have; for types with a CodeFormat.
inline void FillRandomCodes(DType dtype, int64_t k, TestRng* rng, std::byte* row) {
  const CodeFormat* format = FindCodeFormat(dtype);
  const int scale_bits = dtype == DType::kQ2_K ? 4 : dtype == DType::kQ6_K ? 8 : 6, min_bits = std::min(scale_bits, 6);
  uint64_t bits = 0;
  int left = 0;
  const auto draw = [&](int count) {
    if (left < count) bits = rng->Next(), left = 64;
    const auto value = static_cast<uint8_t>(bits & ((1u << count) - 1));
    bits >>= count, left -= count;
    return value;
  };
  for (int64_t i = 0; i < k; i += GetDTypeInfo(dtype).block_size, row += GetDTypeInfo(dtype).block_bytes) {
    BlockCodes codes;
    codes.d = F32ToF16(rng->Uniform(-0.02f, 0.02f));
    codes.dmin = F32ToF16(rng->Uniform(-0.02f, 0.02f));
    for (int j = 0; j < kMaxSubBlocks; ++j) codes.scale[j] = draw(scale_bits), codes.min[j] = draw(min_bits);
    for (uint8_t& q : codes.q) q = draw(format->bits);
    format->pack(codes, row);
  }
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
    if (fp8) FillScales(seed);
  }

  // The same by all threads of a pool, for large ones; other values, and any codes.
  TestWeight(DType dtype, int64_t n, int64_t k, uint64_t seed, ThreadPool* pool) : dtype(dtype), n(n), k(k) {
    const bool fp8 = dtype == DType::kFP8E4M3;
    const int64_t row_bytes = DTypeBytes(dtype, k);
    bytes.resize(n * row_bytes);
    pool->ParallelFor(n, [&](int64_t row, int) {
      TestRng rng(seed + static_cast<uint64_t>(row + 1) * 0x9e3779b97f4a7c15u);
      std::byte* to = bytes.data() + row * row_bytes;
      if (FindCodeFormat(dtype) != nullptr) return FillRandomCodes(dtype, k, &rng, to);
      FindQuantFormat(dtype)->encode(rng.NormalVector(k, fp8 ? 30.0f : 0.5f).data(), to, k);
    });
    if (fp8) FillScales(seed);
  }

  MatrixPart part() const { return {dtype, n, bytes.data(), scales.empty() ? nullptr : scales.data()}; }

  PackedMatrix Pack(Isa isa) const {
    const MatrixPart one = part();
    return PackMatrix({&one, 1}, k, {.isa = isa}).value();
  }

  void FillScales(uint64_t seed) {
    TestRng rng(~seed);
    scales.resize((n + 127) / 128 * ((k + 127) / 128));
    for (float& scale : scales) scale = rng.Uniform(0.005f, 0.02f);
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
