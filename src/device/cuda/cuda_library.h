// The host's side of the CUDA backend: finds libcachalot_cuda.so, turns failures into Status and owns device objects.
// Needs no CUDA header and no CUDA library at build time.
#pragma once

#include <string>
#include <utility>

#include "base/status.h"
#include "device/cuda/cuda_backend.h"

namespace cachalot {

// What a call came to, in our words; the op and shapes are the library's.
Status FromCuda(CudaStatus status);

// Loads the library (kept until the process ends). `path` empty: the name alone, beside the program first and then as the
// system searches. kNotFound when it, or one of the CUDA libraries it needs, is not there; kUnsupported when it is of
// another version.
Result<const CudaBackend*> LoadCudaBackend(const std::string& path = "");

// The file that it was loaded from.
std::string CudaLibraryPath(const CudaBackend& backend);

// Whether the library's kernels run on a card; to be asked before anything is loaded. kUnsupported names the card, what it has
// and what it takes.
Status CheckCudaCard(const CudaBackend& backend, const CudaDeviceInfo& card);

// Owned device memory.
class CudaBuffer {
 public:
  CudaBuffer() = default;
  static Result<CudaBuffer> Allocate(const CudaBackend* backend, int64_t size_bytes);
  ~CudaBuffer() { Release(); }
  CudaBuffer(CudaBuffer&& other) noexcept { *this = std::move(other); }
  CudaBuffer& operator=(CudaBuffer&& other) noexcept;
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  template <typename T>
  T* as() const { return reinterpret_cast<T*>(data_); }

 private:
  void Release();

  const CudaBackend* backend_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

// Owned page-locked host memory.
class CudaHostBuffer {
 public:
  CudaHostBuffer() = default;
  static Result<CudaHostBuffer> Allocate(const CudaBackend* backend, int64_t size_bytes);
  ~CudaHostBuffer() { Release(); }
  CudaHostBuffer(CudaHostBuffer&& other) noexcept { *this = std::move(other); }
  CudaHostBuffer& operator=(CudaHostBuffer&& other) noexcept;
  CudaHostBuffer(const CudaHostBuffer&) = delete;
  CudaHostBuffer& operator=(const CudaHostBuffer&) = delete;

  std::byte* data() const { return data_; }

 private:
  void Release();

  const CudaBackend* backend_ = nullptr;
  std::byte* data_ = nullptr;
};

// Scratch memory of a step on the device, as Workspace is on the host: one allocation, taking is a pointer bump, given back
// in reverse order by marks.
class CudaWorkspace {
 public:
  static Result<CudaWorkspace> Allocate(const CudaBackend* backend, int64_t size_bytes);

  // 256-byte aligned, contents undefined. Sizes are planned before the first step: running out is a CHECK failure.
  template <typename T>
  T* Take(int64_t count) { return reinterpret_cast<T*>(TakeBytes(count * static_cast<int64_t>(sizeof(T)))); }
  std::byte* TakeBytes(int64_t size_bytes);

  int64_t mark() const { return used_; }
  void GiveBack(int64_t mark) { used_ = mark; }
  int64_t peak() const { return peak_; }
  int64_t size() const { return buffer_.size(); }
  static constexpr int64_t Padded(int64_t size_bytes) { return (size_bytes + 255) / 256 * 256; }

 private:
  CudaBuffer buffer_;
  int64_t used_ = 0;
  int64_t peak_ = 0;
};

}  // namespace cachalot
