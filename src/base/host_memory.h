// HostMemory: one large piece of the host's memory, on pages of 2 MB where the system has them. Its contents are zero; what is
// not touched takes no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/status.h"

namespace cachalot {

class HostMemory {
 public:
  HostMemory() = default;
  static Result<HostMemory> Allocate(int64_t size_bytes);
  ~HostMemory();
  HostMemory(HostMemory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  HostMemory& operator=(HostMemory&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace cachalot
