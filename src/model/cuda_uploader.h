// CudaUploader: a model's weights on their way into device memory. Rows are turned into the device layout by the thread pool
// (which is also what reads a mapped file's pages) into page-locked buffers, and copied while the next buffer is filled: so
// disk, repacking and the bus work at the same time.
// Invariant: all memory comes from one arena whose size was planned by the same code, in the same order.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "base/thread_pool.h"
#include "device/cuda/cuda_library.h"
#include "kernels/matmul/packed_matrix.h"

namespace cachalot {

class CudaUploader {
 public:
  // Bytes of the arena that the two calls below take.
  static int64_t MatrixBytes(std::span<const MatrixPart> parts, int64_t k);
  static int64_t BytesOf(int64_t size_bytes) { return CudaWorkspace::Padded(size_bytes); }

  static Result<std::unique_ptr<CudaUploader>> Create(const CudaBackend* backend, int64_t arena_bytes, ThreadPool* pool);
  ~CudaUploader();
  CudaUploader(const CudaUploader&) = delete;
  CudaUploader& operator=(const CudaUploader&) = delete;

  // The parts, stacked. Their memory is free again when this returns. BF16 becomes F16 where every value but the tiniest
  // keeps its bits (docs/decisions/0004): the same speed with activations that are rounded eight times finer.
  Result<PackedMatrix> Matrix(std::span<const MatrixPart> parts, int64_t k);
  // Plain bytes: norms, tables of pointers. Returns the device's address.
  Result<const std::byte*> Bytes(const void* data, int64_t size_bytes);

  // Waits for everything; the arena then belongs to the caller.
  Result<CudaBuffer> Finish();

 private:
  static constexpr int kNumBuffers = 3;
  static constexpr int64_t kBufferBytes = int64_t{32} << 20;

  CudaUploader(const CudaBackend* backend, ThreadPool* pool) : backend_(backend), pool_(pool) {}
  bool FitsF16(std::span<const MatrixPart> parts, int64_t k) const;
  Result<std::byte*> Take(int64_t size_bytes);
  // Fills a staging buffer with `size_bytes` bytes by fill(buffer) and sends it to `device`.
  template <typename Fill>
  Status Send(std::byte* device, int64_t size_bytes, Fill fill);

  const CudaBackend* backend_;
  ThreadPool* pool_;
  CudaBuffer arena_;
  int64_t used_ = 0;
  void* stream_ = nullptr;
  struct Staging {
    void* data = nullptr;
    void* copied = nullptr;  // event
  };
  std::array<Staging, kNumBuffers> staging_;
  int next_ = 0;
};

}  // namespace cachalot
