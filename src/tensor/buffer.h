// Buffer: owned host memory, 64-byte aligned; large ones ask for huge pages. Contents are zero.
// BufferArena: many buffers side by side in memory of huge pages.
#pragma once

#include <cstdint>
#include <memory>
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
  friend class BufferArena;
  Buffer(std::byte* data, int64_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
  std::shared_ptr<const Buffer> whole_;  // what this is a piece of, and what owns the memory
};

// A matrix of a megabyte by itself lies on pages of 4 KB, and a core that streams those is 20 % slower (Zen 3
// under KVM). Pieces of a large buffer lie on pages of 2 MB. A piece's memory comes back when all of its
// neighbours are gone too; what was never used takes none.
class BufferArena {
 public:
  Result<Buffer> Take(int64_t size_bytes);

 private:
  std::shared_ptr<Buffer> whole_;
  int64_t used_ = 0;
};

}  // namespace cachalot
