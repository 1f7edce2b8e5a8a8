#include "tensor/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fault.h"

namespace cachalot {
namespace {

constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kAlignment = 64;
constexpr int64_t kArenaBytes = int64_t{256} << 20;  // of addresses

}  // namespace

Result<Buffer> Buffer::Allocate(int64_t size_bytes) {
  CHECK(size_bytes >= 0);
  if (size_bytes == 0) return Buffer();
  void* data = FaultHits("alloc") ? MAP_FAILED
                                  : ::mmap(nullptr, static_cast<size_t>(size_bytes), PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return Exhausted("allocating {} bytes of host memory failed: {}", size_bytes, std::strerror(ENOMEM));
  if (size_bytes >= 2 * kHugePage) ::madvise(data, static_cast<size_t>(size_bytes), MADV_HUGEPAGE);
  return Buffer(static_cast<std::byte*>(data), size_bytes);
}

Buffer::~Buffer() {
  if (data_ != nullptr && whole_ == nullptr) ::munmap(data_, static_cast<size_t>(size_));
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), whole_(std::move(other.whole_)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(whole_, other.whole_);
  return *this;
}

Result<Buffer> BufferArena::Take(int64_t size_bytes) {
  CHECK(size_bytes >= 0);
  if (size_bytes == 0) return Buffer();
  if (FaultHits("alloc")) return Exhausted("allocating {} bytes of host memory failed: {}", size_bytes, std::strerror(ENOMEM));
  if (whole_ == nullptr || size_bytes > whole_->size() - used_) {
    const int64_t room = size_bytes < kArenaBytes - kHugePage ? kArenaBytes - kHugePage : size_bytes;
    ASSIGN_OR_RETURN(Buffer whole, Buffer::Allocate(room + kHugePage));
    used_ = -reinterpret_cast<intptr_t>(whole.data()) & (kHugePage - 1);  // where its first huge page starts
    whole_ = std::make_shared<Buffer>(std::move(whole));
  }
  Buffer piece(whole_->data() + used_, size_bytes);
  piece.whole_ = whole_;
  used_ += std::min((size_bytes + kAlignment - 1) / kAlignment * kAlignment, whole_->size() - used_);
  return piece;
}

}  // namespace cachalot
