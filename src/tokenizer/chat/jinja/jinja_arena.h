// Memory of one render: objects and text are only ever added, and freed together. Cycles, deep structures and
// hostile templates thus cannot leak or overflow a stack on destruction; the price, that garbage stays, is
// bounded by the limit. Invariant: nothing put in here has a destructor that matters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace cachalot::jinja {

class Arena {
 public:
  explicit Arena(int64_t max_bytes) : max_bytes_(max_bytes) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Small things of fixed size may overshoot the limit a little: exhausted() is asked at every step of the
  // evaluator. Whoever allocates a size that data decides asks Fits first.
  bool Fits(int64_t bytes) const { return bytes <= max_bytes_ - used_; }
  bool exhausted() const { return used_ > max_bytes_; }
  int64_t used_bytes() const { return used_; }
  int64_t max_bytes() const { return max_bytes_; }

  template <typename T, typename... Args>
  T* New(Args&&... args) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= 16);
    return new (objects_.Take(RoundUp(sizeof(T)), this)) T(std::forward<Args>(args)...);
  }
  template <typename T>
  T* NewArray(size_t count) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= 16);
    T* array = reinterpret_cast<T*>(objects_.Take(RoundUp(sizeof(T) * count), this));
    for (size_t i = 0; i < count; ++i) new (array + i) T();
    return array;
  }
  char* NewText(size_t size) { return text_.Take(size, this); }
  // Grows the text that was allocated last and ends at `end` in place; false when it is not the last or has
  // no room.
  bool GrowText(const char* end, size_t size);

 private:
  struct Pool {
    char* Take(size_t size, Arena* arena);
    std::vector<std::unique_ptr<char[]>> chunks;
    char* next = nullptr;
    char* end = nullptr;
    size_t chunk_size = 4096;
  };

  static size_t RoundUp(size_t size) { return (size + 15) & ~size_t{15}; }

  Pool objects_;
  Pool text_;
  int64_t max_bytes_;
  int64_t used_ = 0;
};

}  // namespace cachalot::jinja
