#include "device/workspace.h"

#include <algorithm>

namespace cachalot {

Result<Workspace> Workspace::Allocate(int64_t size_bytes) {
  Workspace workspace;
  ASSIGN_OR_RETURN(workspace.buffer_, Buffer::Allocate(Padded(size_bytes)));
  workspace.data_ = workspace.buffer_.data();
  workspace.size_ = workspace.buffer_.size();
  return workspace;
}

Workspace Workspace::Over(std::byte* data, int64_t size_bytes) {
  Workspace workspace;
  workspace.data_ = data;
  workspace.size_ = size_bytes;
  return workspace;
}

std::byte* Workspace::TakeBytes(int64_t size_bytes) {
  const int64_t padded = Padded(size_bytes);
  CHECK(size_bytes >= 0 && padded <= size_ - used_)
      << "workspace of " << size_ << " bytes, " << used_ << " used, " << size_bytes << " wanted";
  std::byte* data = data_ + used_;
  used_ += padded;
  peak_ = std::max(peak_, used_);
  return data;
}

}  // namespace cachalot
