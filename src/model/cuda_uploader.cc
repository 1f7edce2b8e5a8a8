#include "model/cuda_uploader.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/matmul/matmul_cuda.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

// Rows that share a block scale in the stacked matrix: 1 where a part but the last ends inside a block.
int64_t BlockScaleRows(std::span<const MatrixPart> parts) {
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    if (parts[i].rows % kFp8BlockSize != 0) return 1;
  }
  return kFp8BlockSize;
}

int64_t TotalRows(std::span<const MatrixPart> parts) {
  int64_t n = 0;
  for (const MatrixPart& part : parts) n += part.rows;
  return n;
}

void BF16RowToF16(const std::byte* source, int64_t k, std::byte* row, int64_t row_bytes) {
  const auto* from = reinterpret_cast<const uint16_t*>(source);
  auto* to = reinterpret_cast<uint16_t*>(row);
  for (int64_t i = 0; i < k; ++i) to[i] = F32ToF16(BF16ToF32(from[i]));
  std::memset(row + 2 * k, 0, static_cast<size_t>(row_bytes - 2 * k));
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t ScaleBytes(std::span<const MatrixPart> parts, int64_t k) {
  if (parts.front().dtype != DType::kFP8E4M3) return 0;
  return CeilDiv(TotalRows(parts), BlockScaleRows(parts)) * CeilDiv(k, kFp8BlockSize) * static_cast<int64_t>(sizeof(float));
}

}  // namespace

int64_t CudaUploader::MatrixBytes(std::span<const MatrixPart> parts, int64_t k) {
  return BytesOf(TotalRows(parts) * CudaRowsOf(parts.front().dtype, k).row_bytes) + BytesOf(ScaleBytes(parts, k));
}

Result<std::unique_ptr<CudaUploader>> CudaUploader::Create(const CudaBackend* backend, int64_t arena_bytes, ThreadPool* pool) {
  auto uploader = std::unique_ptr<CudaUploader>(new CudaUploader(backend, pool));
  ASSIGN_OR_RETURN(uploader->arena_, CudaBuffer::Allocate(backend, arena_bytes));
  RETURN_IF_ERROR(FromCuda(backend->stream_create(false, &uploader->stream_)));
  for (Staging& staging : uploader->staging_) {
    RETURN_IF_ERROR(FromCuda(backend->allocate_host(kBufferBytes, &staging.data)));
    RETURN_IF_ERROR(FromCuda(backend->event_create(false, &staging.copied)));
    RETURN_IF_ERROR(FromCuda(backend->event_record(staging.copied, uploader->stream_)));
  }
  return uploader;
}

CudaUploader::~CudaUploader() {
  if (stream_ != nullptr) (void)backend_->stream_synchronize(stream_);
  for (Staging& staging : staging_) {
    if (staging.copied != nullptr) (void)backend_->event_destroy(staging.copied);
    if (staging.data != nullptr) (void)backend_->release_host(staging.data);
  }
  if (stream_ != nullptr) (void)backend_->stream_destroy(stream_);
}

Result<std::byte*> CudaUploader::Take(int64_t size_bytes) {
  const int64_t padded = BytesOf(size_bytes);
  if (padded > arena_.size() - used_) {
    return Internal("weights of {} bytes on the GPU, {} used, {} more: planned otherwise", arena_.size(), used_, size_bytes);
  }
  std::byte* data = arena_.data() + used_;
  used_ += padded;
  return data;
}

template <typename Fill>
Status CudaUploader::Send(std::byte* device, int64_t size_bytes, Fill fill) {
  Staging& staging = staging_[static_cast<size_t>(next_)];
  next_ = (next_ + 1) % kNumBuffers;
  RETURN_IF_ERROR(FromCuda(backend_->event_synchronize(staging.copied)));
  fill(static_cast<std::byte*>(staging.data));
  RETURN_IF_ERROR(FromCuda(backend_->copy(device, staging.data, size_bytes, stream_)));
  return FromCuda(backend_->event_record(staging.copied, stream_));
}

// BF16 has more range than F16 and fewer bits. Values of 2^-14 and more are exact in F16; smaller ones lose bits, at most
// 2^-25 each, which is nothing beside the other values of a row, so only too large ones forbid it.
bool CudaUploader::FitsF16(std::span<const MatrixPart> parts, int64_t k) const {
  constexpr uint16_t kTooLarge = 0x4780;  // 65536 in BF16, and all that is not finite
  for (const MatrixPart& part : parts) {
    const auto* values = reinterpret_cast<const uint16_t*>(part.data);
    constexpr int64_t kPiece = 1 << 20;
    const int64_t count = part.rows * k;
    std::atomic<bool> fits{true};
    pool_->ParallelFor(CeilDiv(count, kPiece), [&](int64_t piece, int) {
      uint16_t largest = 0;
      const int64_t end = std::min(count, (piece + 1) * kPiece);
      for (int64_t i = piece * kPiece; i < end; ++i) largest = std::max<uint16_t>(largest, values[i] & 0x7fff);
      if (largest >= kTooLarge) fits.store(false, std::memory_order_relaxed);
    });
    if (!fits.load()) return false;
  }
  return true;
}

Result<PackedMatrix> CudaUploader::Matrix(std::span<const MatrixPart> parts, int64_t k) {
  const DType source_dtype = parts.front().dtype;
  const bool to_f16 = source_dtype == DType::kBF16 && FitsF16(parts, k);
  const DType dtype = to_f16 ? DType::kF16 : source_dtype;
  const CudaRowLayout rows = CudaRowsOf(dtype, k);
  if (rows.row_bytes == 0 || rows.row_bytes > kBufferBytes) {
    return Unsupported("rows of {} values of type {} on the GPU", k, DTypeName(dtype));
  }
  PackedMatrix matrix;
  matrix.dtype = dtype;
  matrix.layout = PackLayout::kCuda;
  matrix.n = TotalRows(parts);
  matrix.k = k;
  matrix.block_scale_rows = BlockScaleRows(parts);
  matrix.data_bytes = matrix.n * DTypeBytes(dtype, k) + ScaleBytes(parts, k);
  ASSIGN_OR_RETURN(std::byte* device, Take(matrix.n * rows.row_bytes));
  matrix.data = device;
  const int64_t source_row_bytes = DTypeBytes(source_dtype, k);
  const int64_t rows_per_buffer = kBufferBytes / rows.row_bytes;
  for (const MatrixPart& part : parts) {
    for (int64_t begin = 0; begin < part.rows; begin += rows_per_buffer) {
      const int64_t count = std::min(rows_per_buffer, part.rows - begin);
      const std::byte* source = part.data + begin * source_row_bytes;
      // About 256 KB a task: enough to be worth a thread, few enough to be spread.
      const int64_t per_task = std::max<int64_t>(1, (int64_t{256} << 10) / rows.row_bytes);
      RETURN_IF_ERROR(Send(device, count * rows.row_bytes, [&](std::byte* buffer) {
        pool_->ParallelFor(CeilDiv(count, per_task), [&](int64_t task, int) {
          for (int64_t i = task * per_task; i < std::min(count, (task + 1) * per_task); ++i) {
            std::byte* row = buffer + i * rows.row_bytes;
            if (to_f16) BF16RowToF16(source + i * source_row_bytes, k, row, rows.row_bytes);
            else PackCudaRow(dtype, source + i * source_row_bytes, k, row);
          }
        });
      }));
      device += count * rows.row_bytes;
    }
  }
  if (dtype != DType::kFP8E4M3) return matrix;

  const int64_t per_row = CeilDiv(k, kFp8BlockSize);
  std::vector<float> scales;
  scales.reserve(static_cast<size_t>(CeilDiv(matrix.n, matrix.block_scale_rows) * per_row));
  for (const MatrixPart& part : parts) {
    for (int64_t row = 0; row < part.rows; row += matrix.block_scale_rows) {
      const float* from = part.block_scales + row / kFp8BlockSize * per_row;
      scales.insert(scales.end(), from, from + per_row);
    }
  }
  ASSIGN_OR_RETURN(const std::byte* sent, Bytes(scales.data(), static_cast<int64_t>(scales.size() * sizeof(float))));
  matrix.block_scales = reinterpret_cast<const float*>(sent);
  return matrix;
}

Result<const std::byte*> CudaUploader::Bytes(const void* data, int64_t size_bytes) {
  ASSIGN_OR_RETURN(std::byte* device, Take(size_bytes));
  for (int64_t begin = 0; begin < size_bytes; begin += kBufferBytes) {
    const int64_t count = std::min(kBufferBytes, size_bytes - begin);
    RETURN_IF_ERROR(Send(device + begin, count, [&](std::byte* buffer) {
      std::memcpy(buffer, static_cast<const std::byte*>(data) + begin, static_cast<size_t>(count));
    }));
  }
  return device;
}

Result<CudaBuffer> CudaUploader::Finish() {
  RETURN_IF_ERROR(FromCuda(backend_->stream_synchronize(stream_)));
  if (used_ != arena_.size()) return Internal("weights of {} bytes on the GPU, {} planned", used_, arena_.size());
  return std::move(arena_);
}

}  // namespace cachalot
