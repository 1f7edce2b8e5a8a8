#include "support/heap_hook.h"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> g_num_allocations{0};

void Count() {
  g_num_allocations.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

namespace cachalot {

int64_t NumHeapAllocations() {
  return g_num_allocations.load(std::memory_order_relaxed);
}

}  // namespace cachalot

#ifndef CACHALOT_SANITIZED

// glibc lets a program define these; its own are still there under other names. operator new calls malloc.
extern "C" {

void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* pointer, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
void __libc_free(void* pointer);

void* malloc(size_t size) {
  Count();
  return __libc_malloc(size);
}

void* calloc(size_t count, size_t size) {
  Count();
  return __libc_calloc(count, size);
}

void* realloc(void* pointer, size_t size) {
  Count();
  return __libc_realloc(pointer, size);
}

void* memalign(size_t alignment, size_t size) {
  Count();
  return __libc_memalign(alignment, size);
}

void* aligned_alloc(size_t alignment, size_t size) {
  Count();
  return __libc_memalign(alignment, size);
}

int posix_memalign(void** out, size_t alignment, size_t size) {
  Count();
  void* pointer = __libc_memalign(alignment, size);
  if (pointer == nullptr) return ENOMEM;
  *out = pointer;
  return 0;
}

void free(void* pointer) {
  __libc_free(pointer);
}

}  // extern "C"

#else

// AddressSanitizer brings all forms of its own, so every form that might meet another is replaced.
void* operator new(size_t size) {
  Count();
  void* pointer = std::malloc(size == 0 ? 1 : size);
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

void* operator new(size_t size, std::align_val_t alignment) {
  Count();
  void* pointer = nullptr;
  if (posix_memalign(&pointer, static_cast<size_t>(alignment), size == 0 ? 1 : size) != 0)
    throw std::bad_alloc();
  return pointer;
}

void operator delete(void* pointer) noexcept {
  std::free(pointer);
}
void operator delete(void* pointer, size_t) noexcept {
  std::free(pointer);
}
void operator delete(void* pointer, std::align_val_t) noexcept {
  std::free(pointer);
}
void operator delete(void* pointer, size_t, std::align_val_t) noexcept {
  std::free(pointer);
}

void* operator new(size_t size, const std::nothrow_t&) noexcept {
  Count();
  return std::malloc(size == 0 ? 1 : size);
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return operator new(size, std::nothrow);
}
void* operator new[](size_t size) {
  return operator new(size);
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return operator new(size, alignment);
}
void operator delete[](void* pointer) noexcept {
  std::free(pointer);
}
void operator delete[](void* pointer, size_t) noexcept {
  std::free(pointer);
}
void operator delete[](void* pointer, std::align_val_t) noexcept {
  std::free(pointer);
}
void operator delete[](void* pointer, size_t, std::align_val_t) noexcept {
  std::free(pointer);
}

#endif
