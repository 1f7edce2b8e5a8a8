// PackedMatrix: a weight matrix W [n, k] in the layout that the chosen kernels stream, built once at load time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace cachalot {

inline constexpr int64_t kFp8BlockSize = 128;

// Rows of a weight as a file holds them: row-major [rows, k], contiguous.
struct MatrixPart {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  const std::byte* data = nullptr;
  // FP8 only: [ceil(rows/128), ceil(k/128)]; a value is fp8 * scale of its block (DeepSeek-V3's weight_scale_inv).
  const float* block_scales = nullptr;
};

enum class PackLayout : uint8_t {
  kRowMajor,  // as in the file
  kPanel,     // groups of rows interleaved for the SIMD kernels; details in matmul/panel.h
  kCuda,      // rows in device memory (matmul/matmul_cuda.h); the pointers are the device's, the memory is the model's
};

struct PackedMatrix {
  DType dtype = DType::kF32;
  PackLayout layout = PackLayout::kRowMajor;
  int64_t n = 0;
  int64_t k = 0;
  const std::byte* data = nullptr;  // into `storage`, or borrowed (see PackOptions::borrow)
  int64_t data_bytes = 0;           // what one full pass over the matrix reads, scales included
  Buffer storage;
  // FP8, row-major layout: [ceil(n / block_scale_rows), ceil(k/128)]
  const float* block_scales = nullptr;
  int64_t block_scale_rows = kFp8BlockSize;  // 1 where stacked parts end inside a block of 128 rows
  Buffer scale_storage;

  bool empty() const { return n == 0; }
};

struct PackOptions {
  Isa isa = Isa::kRef;
  // The caller keeps the part's memory alive for as long as the matrix: a single row-major part is then not copied.
  bool borrow = false;
  ThreadPool* pool = nullptr;    // null: the caller's thread alone
  BufferArena* arena = nullptr;  // where the matrix will lie; null: by itself
};

// Stacks the parts (all of the same dtype and k; k a multiple of the block size) into one matrix. kUnsupported names a
// type that no kernel reads; kExhausted when memory is short.
Result<PackedMatrix> PackMatrix(std::span<const MatrixPart> parts, int64_t k, const PackOptions& options);

// Bytes that PackMatrix will own for such a matrix (0 when it would borrow); exact, for the plan before loading (except
// that row-major FP8 parts stacked inside a block of 128 rows take more: one row of scales each).
int64_t PackedBytes(DType dtype, int64_t n, int64_t k, const PackOptions& options);

// Row `row` in F32, whatever the layout: out [k].
void DecodeRow(const PackedMatrix& matrix, int64_t row, float* out);

}  // namespace cachalot
