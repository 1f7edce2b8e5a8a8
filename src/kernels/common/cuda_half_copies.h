// F16 copies of what norms, SwiGLU, attention and the matmuls of heads behind it write, made while it is written, for the matmuls that would convert it next.
//
// Invariant: Find gives a copy only of what lies at x now. So whoever writes F32 to device memory says where (Overwritten,
// before its own Begin) or that it might have been anywhere (Clear); RunCuda does the latter for every op that does not say.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace cachalot {

// Beside rows of F32: the same values rounded to F16, clamped to ±65504. Null: none.
struct CudaHalfRows {
  void* data = nullptr;
  int64_t stride = 0;  // values
};

// Where the copies of one source are kept, and the rows from which on they are made.
struct CudaHalfBuffer {
  std::byte* data = nullptr;
  int64_t bytes = 0;
  int64_t least_rows = INT64_MAX;
};

enum class CudaHalfSource : int32_t { kNorm, kSwiGlu, kAttention, kHeads };

class CudaHalfCopies {
 public:
  static constexpr int kNumSources = 4;

  // A dry run: the copies that would have been found say how large a buffer they want.
  void StartPlanning() { planning_ = true; }
  const CudaHalfBuffer& planned(CudaHalfSource source) const { return entries_[static_cast<int>(source)].buffer; }

  void Provide(CudaHalfSource source, const CudaHalfBuffer& buffer) { entries_[static_cast<int>(source)] = {.buffer = buffer}; }

  // `source` is about to write y [rows, dim], row stride `stride`: where its copy is to go, if there is to be one.
  CudaHalfRows Begin(CudaHalfSource source, const float* y, int64_t stride, int64_t rows, int64_t dim) {
    Entry& entry = entries_[static_cast<int>(source)];
    if (dim % kWholeRows != 0) return {};
    if (!planning_ && (rows < entry.buffer.least_rows || rows * dim * 2 > entry.buffer.bytes)) return {};
    entry.y = y, entry.stride = stride, entry.rows = rows, entry.dim = dim;
    return {entry.buffer.data, dim};
  }

  // The copy of x [m, k]; `least_rows`: of x, from which on its reader wants F16.
  CudaHalfRows Find(const float* x, int64_t stride, int64_t m, int64_t k, int64_t least_rows) {
    if (m < least_rows) return {};
    for (Entry& entry : entries_) {
      if (entry.rows < m || entry.y != x || entry.dim != k || (entry.stride != stride && m > 1)) continue;
      if (planning_) {
        entry.buffer.bytes = std::max(entry.buffer.bytes, entry.rows * entry.dim * 2);
        entry.buffer.least_rows = std::min(entry.buffer.least_rows, least_rows);
        return {};
      }
      return {entry.buffer.data, entry.dim};
    }
    return {};
  }

  // Bytes [y, y + bytes), or rows [rows, dim] at y, are about to be written.
  void Overwritten(const void* y, int64_t bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(y);
    for (Entry& entry : entries_) {
      const auto from = reinterpret_cast<uintptr_t>(entry.y);
      const int64_t held = entry.rows == 0 ? 0 : ((entry.rows - 1) * entry.stride + entry.dim) * static_cast<int64_t>(sizeof(float));
      if (begin < from + static_cast<uintptr_t>(held) && from < begin + static_cast<uintptr_t>(bytes)) entry.rows = 0;
    }
  }
  void Overwritten(const float* y, int64_t rows, int64_t stride, int64_t dim) {
    Overwritten(y, ((rows - 1) * stride + dim) * static_cast<int64_t>(sizeof(float)));
  }
  void Clear() {
    for (Entry& entry : entries_) entry.rows = 0;
  }

 private:
  static constexpr int64_t kWholeRows = 128;  // values: matmuls read rows padded to as many
  struct Entry {
    CudaHalfBuffer buffer;
    // What has been copied; no rows: nothing.
    const float* y = nullptr;
    int64_t stride = 0;
    int64_t rows = 0;
    int64_t dim = 0;
  };
  Entry entries_[kNumSources];
  bool planning_ = false;
};

}  // namespace cachalot
