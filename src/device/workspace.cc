#include "device/workspace.h"

#include <algorithm>

namespace cachalot {

Result<Workspace> Workspace::Allocate(int64_t size_bytes) {
  Workspace workspace;
  ASSIGN_OR_RETURN(workspace.buffer_, Buffer::Allocate(Padded(size_bytes)));
  return workspace;
}

std::byte* Workspace::TakeBytes(int64_t size_bytes) {
  const int64_t padded = Padded(size_bytes);
  CHECK(size_bytes >= 0 && padded <= buffer_.size() - used_)
      << "workspace of " << buffer_.size() << " bytes, " << used_ << " used, " << size_bytes << " wanted";
  std::byte* data = buffer_.data() + used_;
  used_ += padded;
  peak_ = std::max(peak_, used_);
  return data;
}

}  // namespace cachalot
