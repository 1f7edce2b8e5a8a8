#include "tensor/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fault.h"

namespace cachalot {

Result<Buffer> Buffer::Allocate(int64_t size_bytes) {
  CHECK(size_bytes >= 0);
  if (size_bytes == 0) return Buffer();
  void* data = FaultHits("alloc") ? MAP_FAILED
                                  : ::mmap(nullptr, static_cast<size_t>(size_bytes), PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return Exhausted("allocating {} bytes of host memory failed: {}", size_bytes, std::strerror(ENOMEM));
  constexpr int64_t kHugePage = 2 << 20;
  if (size_bytes >= 2 * kHugePage) ::madvise(data, static_cast<size_t>(size_bytes), MADV_HUGEPAGE);
  return Buffer(static_cast<std::byte*>(data), size_bytes);
}

Buffer::~Buffer() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(size_));
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace cachalot
