#include "base/host_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace cachalot {

Result<HostMemory> HostMemory::Allocate(int64_t size_bytes) {
  HostMemory memory;
  if (size_bytes == 0) return memory;
  void* data = ::mmap(nullptr, static_cast<size_t>(size_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return Exhausted("{} bytes of the host's memory: {}", size_bytes, std::strerror(errno));
  ::madvise(data, static_cast<size_t>(size_bytes), MADV_HUGEPAGE);  // a wish
  memory.bytes_ = {static_cast<std::byte*>(data), static_cast<size_t>(size_bytes)};
  return memory;
}

HostMemory::~HostMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace cachalot
