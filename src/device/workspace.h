// Workspace: the scratch memory of a step. One allocation before the first step; taking from it is a pointer bump.
// Invariant: what is taken is given back in reverse order (WorkspaceScope), and a step ends with nothing taken.
#pragma once

#include <cstdint>

#include "tensor/buffer.h"

namespace cachalot {

class Workspace {
 public:
  static Result<Workspace> Allocate(int64_t size_bytes);
  // Over memory that somebody else owns (of a device, say): handed out, never touched.
  static Workspace Over(std::byte* data, int64_t size_bytes);

  // 64-byte aligned, contents undefined. Sizes are planned before the first step: running out is a CHECK failure.
  template <typename T>
  T* Take(int64_t count) {
    return reinterpret_cast<T*>(TakeBytes(count * static_cast<int64_t>(sizeof(T))));
  }
  std::byte* TakeBytes(int64_t size_bytes);

  int64_t used() const { return used_; }
  int64_t peak() const { return peak_; }
  int64_t size() const { return size_; }

  // Bytes that Take(count) really uses, for planning.
  static constexpr int64_t Padded(int64_t size_bytes) { return (size_bytes + 63) / 64 * 64; }

 private:
  friend class WorkspaceScope;
  Buffer buffer_;  // empty: the memory is somebody else's
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
  int64_t used_ = 0;
  int64_t peak_ = 0;
};

// Gives back at its end all that was taken since its beginning.
class WorkspaceScope {
 public:
  explicit WorkspaceScope(Workspace* workspace) : workspace_(workspace), mark_(workspace->used_) {}
  ~WorkspaceScope() { workspace_->used_ = mark_; }
  WorkspaceScope(const WorkspaceScope&) = delete;
  WorkspaceScope& operator=(const WorkspaceScope&) = delete;

 private:
  Workspace* workspace_;
  int64_t mark_;
};

}  // namespace cachalot
