// The values of a dummy's tensors: normally distributed, seeded, and the same bytes whichever rows are asked
// for and in whatever order, so that files larger than memory can be streamed and several threads can share
// the work.
#pragma once

#include <cstdint>
#include <span>

#include "weights/dummy/dummy_tensors.h"

namespace cachalot {

inline constexpr uint64_t kDummySeed = 20260101;

// Writes rows [row_begin, row_begin + row_count) of the tensor, seen as rows of its last dimension, to `out`.
class DummyRows {
 public:
  explicit DummyRows(const DummyTensor& tensor, uint64_t seed = kDummySeed);

  int64_t row_bytes() const { return row_bytes_; }
  void Fill(int64_t row_begin, int64_t row_count, std::byte* out) const;

 private:
  void FillPlain(int64_t row, std::byte* out) const;
  void FillBlocks(int64_t row, std::byte* out) const;

  const DummyTensor& tensor_;
  uint64_t seed_;
  int64_t row_bytes_;
  // kTableSize quantiles of the tensor's distribution in its own type, or in F32 for types that are encoded.
  std::vector<std::byte> table_;
  uint16_t block_scales_[16] = {};  // F16
};

// Rows as above, by several threads when they are many. out.size() must be the rows' bytes.
void FillDummyRows(const DummyTensor& tensor, int64_t row_begin, int64_t row_count, std::span<std::byte> out,
                   uint64_t seed = kDummySeed);
// The whole tensor.
inline void FillDummyTensor(const DummyTensor& tensor, std::span<std::byte> out, uint64_t seed = kDummySeed) {
  FillDummyRows(tensor, 0, tensor.num_rows(), out, seed);
}

}  // namespace cachalot
