// PackMatrix: parts as a file holds them → one matrix in the layout that the kernels of the wanted ISA
// stream.
#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/matmul/packed_matrix.h"
#include "kernels/matmul/panel.h"
#include "quant/format.h"

namespace cachalot {
namespace {

PackLayout ChooseLayout(DType dtype, Isa isa) {
  return isa >= Isa::kAvx2 && HasPanelLayout(dtype) ? PackLayout::kPanel : PackLayout::kRowMajor;
}

int64_t NumScaleBlocks(int64_t values) {
  return (values + kFp8BlockSize - 1) / kFp8BlockSize;
}

Status CheckParts(std::span<const MatrixPart> parts, int64_t k, int64_t* n) {
  if (parts.empty()) return InvalidArgument("a matrix of no parts");
  const DType dtype = parts[0].dtype;
  const DTypeInfo& info = GetDTypeInfo(dtype);
  if (FindQuantFormat(dtype) == nullptr) {
    return Unsupported("matrix of type {}: no kernel reads this type", info.name);
  }
  if (k <= 0 || k % info.block_size != 0) {
    return InvalidArgument("matrix of type {}: rows of {} values are not whole blocks of {}", info.name, k,
                           info.block_size);
  }
  *n = 0;
  for (const MatrixPart& part : parts) {
    CHECK(part.dtype == dtype) << DTypeName(part.dtype) << " stacked on " << info.name;
    CHECK(part.rows >= 0 && (part.data != nullptr || part.rows == 0));
    CHECK(dtype != DType::kFP8E4M3 || part.block_scales != nullptr || part.rows == 0);
    if (__builtin_add_overflow(*n, part.rows, n)) return InvalidArgument("matrix with more than 2^63 rows");
  }
  // 8 bytes a value and 16 rows of padding are beyond what any layout takes.
  if (*n > std::numeric_limits<int64_t>::max() / 8 / k - kPanelRows) {
    return InvalidArgument("matrix of {} rows of {} values: larger than memory can be", *n, k);
  }
  return Status::Ok();
}

// Where row `row` of the stacked parts lies. Rows are asked for in increasing order, so the part is kept.
class RowFinder {
 public:
  RowFinder(std::span<const MatrixPart> parts, int64_t k)
      : parts_(parts), k_(k), row_bytes_(DTypeBytes(parts[0].dtype, k)) {}

  void Find(int64_t row, const std::byte** data, const float** scales) {
    while (row - first_row_ >= parts_[part_].rows) first_row_ += parts_[part_++].rows;
    const MatrixPart& part = parts_[part_];
    const int64_t local = row - first_row_;
    *data = part.data + local * row_bytes_;
    if (part.block_scales != nullptr) {
      *scales = part.block_scales + local / kFp8BlockSize * NumScaleBlocks(k_);
    }
  }

 private:
  std::span<const MatrixPart> parts_;
  int64_t k_;
  int64_t row_bytes_;
  size_t part_ = 0;
  int64_t first_row_ = 0;
};

void PackPanels(std::span<const MatrixPart> parts, int64_t n, int64_t k, ThreadPool* pool, std::byte* out) {
  const DType dtype = parts[0].dtype;
  const int64_t num_panels = NumPanels(n), panel_bytes = PanelBytes(dtype, k);
  const int64_t panels_per_task = std::max<int64_t>(1, (256 << 10) / panel_bytes);
  const auto task = [&](int64_t index, int) {
    RowFinder finder(parts, k);
    const int64_t end = std::min(num_panels, (index + 1) * panels_per_task);
    for (int64_t panel = index * panels_per_task; panel < end; ++panel) {
      PanelSource source;
      for (int64_t r = 0; r < std::min(kPanelRows, n - panel * kPanelRows); ++r) {
        finder.Find(panel * kPanelRows + r, &source.rows[r], &source.scales[r]);
      }
      PackPanel(dtype, source, k, out + panel * panel_bytes);
    }
  };
  const int64_t num_tasks = (num_panels + panels_per_task - 1) / panels_per_task;
  if (pool != nullptr) {
    pool->ParallelFor(num_tasks, task);
  } else {
    for (int64_t i = 0; i < num_tasks; ++i) task(i, 0);
  }
}

// FP8 parts that all (but the last) end at a block of 128 rows keep blocks of 128 rows; others get a row of
// scales each.
int64_t BlockScaleRows(std::span<const MatrixPart> parts) {
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    if (parts[i].rows % kFp8BlockSize != 0) return 1;
  }
  return kFp8BlockSize;
}

Result<Buffer> Allocate(int64_t bytes, const PackOptions& options) {
  return options.arena != nullptr ? options.arena->Take(bytes) : Buffer::Allocate(bytes);
}

Status StackScales(std::span<const MatrixPart> parts, PackedMatrix* matrix) {
  const int64_t rows_each = BlockScaleRows(parts), width = NumScaleBlocks(matrix->k);
  const int64_t num_rows = (matrix->n + rows_each - 1) / rows_each;
  ASSIGN_OR_RETURN(matrix->scale_storage, Buffer::Allocate(num_rows * width * sizeof(float)));
  RowFinder finder(parts, matrix->k);
  for (int64_t i = 0; i < num_rows; ++i) {
    const std::byte* data;
    const float* scales = nullptr;
    finder.Find(i * rows_each, &data, &scales);
    std::memcpy(matrix->scale_storage.as<float>() + i * width, scales, width * sizeof(float));
  }
  matrix->block_scales = matrix->scale_storage.as<float>();
  matrix->block_scale_rows = rows_each;
  return Status::Ok();
}

}  // namespace

Result<PackedMatrix> PackMatrix(std::span<const MatrixPart> parts, int64_t k, const PackOptions& options) {
  PackedMatrix matrix;
  RETURN_IF_ERROR(CheckParts(parts, k, &matrix.n));
  matrix.dtype = parts[0].dtype;
  matrix.k = k;
  matrix.layout = ChooseLayout(matrix.dtype, options.isa);
  if (matrix.layout == PackLayout::kPanel) {
    matrix.data_bytes = NumPanels(matrix.n) * PanelBytes(matrix.dtype, k);
    ASSIGN_OR_RETURN(matrix.storage, Allocate(matrix.data_bytes, options));
    PackPanels(parts, matrix.n, k, options.pool, matrix.storage.data());
    matrix.data = matrix.storage.data();
    return matrix;
  }

  const int64_t value_bytes = matrix.n * DTypeBytes(matrix.dtype, k);
  matrix.data_bytes = value_bytes;
  if (options.borrow && parts.size() == 1) {
    matrix.data = parts[0].data;
    matrix.block_scales = parts[0].block_scales;
  } else {
    ASSIGN_OR_RETURN(matrix.storage, Allocate(value_bytes, options));
    std::byte* out = matrix.storage.data();
    for (const MatrixPart& part : parts) {
      const int64_t bytes = part.rows * DTypeBytes(part.dtype, k);
      if (bytes > 0) std::memcpy(out, part.data, bytes);
      out += bytes;
    }
    matrix.data = matrix.storage.data();
    if (matrix.dtype == DType::kFP8E4M3) RETURN_IF_ERROR(StackScales(parts, &matrix));
  }
  if (matrix.dtype == DType::kFP8E4M3) {
    const int64_t scale_rows = (matrix.n + matrix.block_scale_rows - 1) / matrix.block_scale_rows;
    matrix.data_bytes += scale_rows * NumScaleBlocks(k) * static_cast<int64_t>(sizeof(float));
  }
  return matrix;
}

int64_t PackedBytes(DType dtype, int64_t n, int64_t k, const PackOptions& options) {
  if (ChooseLayout(dtype, options.isa) == PackLayout::kPanel) return NumPanels(n) * PanelBytes(dtype, k);
  if (options.borrow) return 0;
  int64_t bytes = n * DTypeBytes(dtype, k);
  if (dtype == DType::kFP8E4M3)
    bytes += NumScaleBlocks(n) * NumScaleBlocks(k) * static_cast<int64_t>(sizeof(float));
  return bytes;
}

void DecodeRow(const PackedMatrix& matrix, int64_t row, float* out) {
  DCHECK(row >= 0 && row < matrix.n) << row << " of " << matrix.n;
  if (matrix.layout == PackLayout::kPanel) {
    const std::byte* panel = matrix.data + row / kPanelRows * PanelBytes(matrix.dtype, matrix.k);
    return DecodePanelRow(matrix.dtype, panel, row % kPanelRows, matrix.k, out);
  }
  FindQuantFormat(matrix.dtype)
      ->decode(matrix.data + row * DTypeBytes(matrix.dtype, matrix.k), out, matrix.k);
  if (matrix.block_scales != nullptr) {
    const float* scales = matrix.block_scales + row / matrix.block_scale_rows * NumScaleBlocks(matrix.k);
    for (int64_t i = 0; i < matrix.k; ++i) out[i] *= scales[i / kFp8BlockSize];
  }
}

}  // namespace cachalot
