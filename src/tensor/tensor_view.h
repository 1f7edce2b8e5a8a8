// TensorView: borrowed memory with a type and a shape; the last dimension is contiguous. Row-major: dims[0] is slowest
// (a GGUF file's "ne" is the reverse).
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "tensor/dtype.h"

namespace cachalot {

inline constexpr int kMaxDims = 4;

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int num_dims = 0;
  std::array<int64_t, kMaxDims> dims{};
  std::array<int64_t, kMaxDims> strides{};  // in values, not bytes; strides[num_dims - 1] == 1

  TensorView() = default;
  // Contiguous.
  TensorView(void* data, DType dtype, std::initializer_list<int64_t> shape);

  int64_t num_values() const;
  int64_t row_bytes() const { return DTypeBytes(dtype, dims[num_dims - 1]); }
  template <typename T>
  T* as() const { return static_cast<T*>(data); }
};

// "[3, 96]"
std::string ShapeString(const int64_t* dims, int num_dims);

}  // namespace cachalot
