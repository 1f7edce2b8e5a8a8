// The format table: one row for each element type whose values we can read, one file for each format.
// Layouts are those of ggml (block formats) and OCP (FP8); a decode is exact: the value the format defines,
// in F32.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace cachalot {

struct QuantFormat {
  DType dtype;
  // `count` values, a multiple of the block size. FP8 without its block scales (they multiply afterwards).
  void (*decode)(const std::byte* src, float* dst, int64_t count);
  // Rounds to the nearest representable value; null where we only read. Not in place.
  void (*encode)(const float* src, std::byte* dst, int64_t count);
  // The same with scales chosen by least squares, each value's squared error weighed by `importance` [count]
  // (null: all the same); null for formats without scales to choose. Never worse than `encode` in that
  // measure, but for rounding.
  void (*encode_weighted)(const float* src, const float* importance, std::byte* dst, int64_t count) = nullptr;
};

// Null when values of this type cannot be read (the type may still be known by name).
const QuantFormat* FindQuantFormat(DType dtype);
std::span<const QuantFormat> AllQuantFormats();

}  // namespace cachalot
