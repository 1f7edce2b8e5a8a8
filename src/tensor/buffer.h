// Buffer: owned host memory, 64-byte aligned; large ones ask for huge pages. Contents are zero.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"

namespace cachalot {

class Buffer {
 public:
  Buffer() = default;
  // kExhausted when the memory is not there.
  static Result<Buffer> Allocate(int64_t size_bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  int64_t size() const { return size_; }
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  template <typename T>
  T* as() { return reinterpret_cast<T*>(data_); }
  template <typename T>
  const T* as() const { return reinterpret_cast<const T*>(data_); }

 private:
  Buffer(std::byte* data, int64_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace cachalot
