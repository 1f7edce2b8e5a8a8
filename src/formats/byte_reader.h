// ByteReader: little-endian values read in order from memory or, through a window, from a file.
// Invariant: no read passes the end; the first failure is kept and every later read returns zero or nothing.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/file.h"
#include "base/status.h"

namespace cachalot {

static_assert(std::endian::native == std::endian::little, "the formats are read as they lie in memory");

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes)
      : window_(bytes), size_(static_cast<int64_t>(bytes.size())) {}
  explicit ByteReader(const File& file) : file_(&file), size_(file.size()) {}
  ByteReader(ByteReader&&) = default;  // the window stays valid: a vector that moves keeps its memory
  ByteReader& operator=(ByteReader&&) = default;

  int64_t position() const { return window_start_ + static_cast<int64_t>(cursor_); }
  int64_t remaining() const { return size_ - position(); }
  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }

  template <typename T>
  T Read() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    if (window_.size() - cursor_ >= sizeof(T)) [[likely]] {
      std::memcpy(&value, window_.data() + cursor_, sizeof(T));
      cursor_ += sizeof(T);
    } else {
      ReadSlow(std::as_writable_bytes(std::span(&value, 1)));
    }
    return value;
  }

  // The caller has compared out.size() with remaining() before it allocated.
  void ReadBytes(std::span<std::byte> out) {
    if (window_.size() - cursor_ >= out.size()) [[likely]] {
      if (!out.empty()) std::memcpy(out.data(), window_.data() + cursor_, out.size());
      cursor_ += out.size();
    } else {
      ReadSlow(out);
    }
  }

 private:
  // The request is larger than what is left of the window.
  void ReadSlow(std::span<std::byte> out);

  const File* file_ = nullptr;
  std::span<const std::byte> window_;
  size_t cursor_ = 0;         // in the window
  int64_t window_start_ = 0;  // in the source
  int64_t size_ = 0;
  std::vector<std::byte> storage_;
  Status status_;
};

}  // namespace cachalot
