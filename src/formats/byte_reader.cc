#include "formats/byte_reader.h"

#include <algorithm>

namespace cachalot {
namespace {

// Large enough that the header of a model file takes few reads, small enough that reading it costs no memory.
constexpr int64_t kWindowBytes = 256 << 10;

}  // namespace

void ByteReader::ReadSlow(std::span<std::byte> out) {
  const int64_t start = position();
  const auto wanted = static_cast<int64_t>(out.size());
  if (ok() && wanted > remaining()) {
    status_ =
        Corrupt("the file ends at byte {}, inside a field of {} bytes at byte {}", size_, wanted, start);
  }
  if (ok() && file_ != nullptr) {
    status_ = file_->ReadAt(start, out);
  }
  if (!ok()) {
    std::fill(out.begin(), out.end(), std::byte{0});
    window_ = {};  // sends every later read here
    cursor_ = 0;
    window_start_ = size_;
    return;
  }
  window_start_ = start + wanted;
  cursor_ = 0;
  storage_.resize(static_cast<size_t>(std::min(kWindowBytes, size_ - window_start_)));
  status_ = file_->ReadAt(window_start_, storage_);
  window_ = storage_;
  if (!ok()) window_ = {};
}

}  // namespace cachalot
