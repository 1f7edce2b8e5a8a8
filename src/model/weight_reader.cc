#include "model/weight_reader.h"

#include <algorithm>

#include "kernels/matmul/matmul_cuda.h"
#include "kernels/matmul/matmul_tap.h"
#include "quant/format.h"

namespace cachalot {

const SourceTensor* WeightReader::FindTensor(const WeightRef& ref) const {
  for (const auto& name : TensorNames(ref.role, naming_, ref.layer, ref.expert)) {
    if (const SourceTensor* tensor = source_.Find(name)) return tensor;
  }
  return nullptr;
}

DType WeightReader::TypeOf(const WeightRef& ref) const {
  const SourceTensor* tensor = FindTensor(ref);
  return tensor == nullptr ? DType::kF32 : tensor->dtype;
}

Result<const SourceTensor*> WeightReader::Require(const WeightRef& ref, int64_t rows, int64_t k) const {
  const SourceTensor* tensor = FindTensor(ref);
  if (tensor == nullptr) {
    const auto names = TensorNames(ref.role, naming_, ref.layer, ref.expert);
    return Corrupt("{}: tensor '{}' is missing", source_.place(), names.empty() ? "(no name)" : names.front());
  }
  // One-dimensional tensors have k values and rows 1; stacked experts have a dimension in front. GGUF's per-head
  // tensors [heads, rows, k] are read as [heads * rows, k].
  std::vector<int64_t> wanted;
  if (Stacked(ref)) wanted = {ref.num_experts, rows, k};
  else if (rows == 1 && tensor->num_dims == 1) wanted = {k};
  else wanted = {rows, k};
  bool fits = tensor->num_dims == static_cast<int>(wanted.size()) &&
              std::equal(wanted.begin(), wanted.end(), tensor->dims);
  if (!fits && !Stacked(ref) && tensor->num_dims == 3) {
    fits = tensor->dims[0] * tensor->dims[1] == rows && tensor->dims[2] == k;
  }
  if (!fits) {
    return Corrupt("{}: tensor '{}' has shape {}, the configuration asks for {}", source_.place(), tensor->name,
                   ShapeString(tensor->dims, tensor->num_dims),
                   ShapeString(wanted.data(), static_cast<int>(wanted.size())));
  }
  if (FindQuantFormat(tensor->dtype) == nullptr) {
    return Unsupported("{}: tensor '{}' has type {}, which this version cannot run", source_.place(), tensor->name,
                       DTypeName(tensor->dtype));
  }
  if (k % GetDTypeInfo(tensor->dtype).block_size != 0) {
    return Corrupt("{}: tensor '{}': {} columns are no multiple of {}'s block of {}", source_.place(), tensor->name, k,
                   DTypeName(tensor->dtype), GetDTypeInfo(tensor->dtype).block_size);
  }
  return tensor;
}

Result<const std::byte*> WeightReader::Bytes(const SourceTensor& tensor, const WeightRef& ref) {
  auto it = fetched_.find(&tensor);
  if (it == fetched_.end()) {
    ASSIGN_OR_RETURN(TensorBytes bytes, source_.Fetch(tensor));
    it = fetched_.emplace(&tensor, std::move(bytes)).first;
  }
  const int64_t slice = Stacked(ref) ? it->second.size / ref.num_experts * ref.expert : 0;
  return it->second.data + slice;
}

Result<const float*> WeightReader::BlockScales(const SourceTensor& tensor, int64_t rows, int64_t k) {
  const std::string name = tensor.name + "_scale_inv";
  const SourceTensor* scales = source_.Find(name);
  if (scales == nullptr) return Corrupt("{}: tensor '{}' is missing (block scales of an FP8 weight)", source_.place(), name);
  const int64_t wanted[] = {(rows + kFp8BlockSize - 1) / kFp8BlockSize, (k + kFp8BlockSize - 1) / kFp8BlockSize};
  if (scales->dtype != DType::kF32 || scales->num_dims != 2 || scales->dims[0] != wanted[0] || scales->dims[1] != wanted[1]) {
    return Corrupt("{}: tensor '{}' is {} {}, expected F32 {}", source_.place(), name, DTypeName(scales->dtype),
                   ShapeString(scales->dims, scales->num_dims), ShapeString(wanted, 2));
  }
  if (mode_ == Mode::kPlan) return static_cast<const float*>(nullptr);
  ASSIGN_OR_RETURN(const std::byte* data, Bytes(*scales, WeightRef{TensorRole::kEmbedding}));
  if (reinterpret_cast<uintptr_t>(data) % alignof(float) != 0) {
    return Corrupt("{}: tensor '{}' is not aligned to 4 bytes", source_.place(), name);
  }
  return reinterpret_cast<const float*>(data);
}

Result<PackedMatrix> WeightReader::Matrix(std::span<const RowsOf> parts, int64_t k) {
  std::vector<MatrixPart> pieces;
  int64_t n = 0;
  DType dtype = DType::kF32;
  for (const RowsOf& part : parts) {
    ASSIGN_OR_RETURN(const SourceTensor* tensor, Require(part.ref, part.rows, k));
    if (!pieces.empty() && tensor->dtype != dtype) {
      return Unsupported("{}: tensor '{}' has type {}, its sibling {}", source_.place(), tensor->name,
                         DTypeName(tensor->dtype), DTypeName(dtype));
    }
    dtype = tensor->dtype;
    MatrixPart piece{.dtype = dtype, .rows = part.rows};
    if (dtype == DType::kFP8E4M3) {
      ASSIGN_OR_RETURN(piece.block_scales, BlockScales(*tensor, part.rows, k));
    }
    if (mode_ == Mode::kLoad) {
      ASSIGN_OR_RETURN(piece.data, Bytes(*tensor, part.ref));
    }
    pieces.push_back(piece);
    n += part.rows;
  }
  ASSIGN_OR_RETURN(PackedMatrix matrix, Place(pieces, k, options_));
  for (const RowsOf& part : parts) Tell(matrix, part.ref);
  return matrix;
}

void WeightReader::Tell(const PackedMatrix& matrix, const WeightRef& ref) const {
  MatmulTap* tap = CurrentMatmulTap();
  if (tap == nullptr || planning() || home_ == DeviceType::kCuda) return;
  tap->OnMatrix(matrix, TensorNames(ref.role, SourceNaming::kGguf, ref.layer, 0).front(), ref.expert,
                std::max(1, ref.num_experts));
}

Result<PackedMatrix> WeightReader::Place(std::span<const MatrixPart> parts, int64_t k, const PackOptions& options) {
  PackedMatrix planned;
  planned.dtype = parts.front().dtype;
  planned.k = k;
  for (const MatrixPart& part : parts) planned.n += part.rows;
  if (home_ == DeviceType::kCuda) {
    if (CudaRowsOf(planned.dtype, k).row_bytes == 0) {
      return Unsupported("{}: weights of type {} on the GPU", source_.place(), DTypeName(planned.dtype));
    }
    planned.layout = PackLayout::kCuda;
    planned.data_bytes = DTypeBytes(planned.dtype, planned.n * k);
    cuda_bytes_ += CudaUploader::MatrixBytes(parts, k);
    return planning() ? std::move(planned) : uploader_->Matrix(parts, k);
  }
  if (options.borrow && options.isa == Isa::kRef && parts.size() == 1) borrowed_bytes_ += DTypeBytes(planned.dtype, planned.n * k);
  else owned_bytes_ += PackedBytes(planned.dtype, planned.n, k, options);
  if (planning()) return planned;
  PackOptions in_arena = options;
  in_arena.arena = &arena_;
  return PackMatrix(parts, k, in_arena);
}

Result<PackedMatrix> WeightReader::Table(const WeightRef& ref, int64_t rows, int64_t k) {
  ASSIGN_OR_RETURN(const SourceTensor* tensor, Require(ref, rows, k));
  if (tensor->dtype == DType::kFP8E4M3) {
    return Unsupported("{}: tensor '{}': an FP8 embedding", source_.place(), tensor->name);
  }
  PackOptions options = options_;
  options.isa = Isa::kRef;
  MatrixPart part{.dtype = tensor->dtype, .rows = rows};
  if (planning()) return Place({&part, 1}, k, options);
  ASSIGN_OR_RETURN(TensorBytes bytes, source_.Fetch(*tensor));
  part.data = bytes.data;
  return Place({&part, 1}, k, options);
}

Result<PackedMatrix> WeightReader::Derived(std::span<const float> values, int64_t rows, int64_t k, DType dtype) {
  PackOptions options = options_;
  options.borrow = false;
  MatrixPart part{.dtype = dtype, .rows = rows};
  if (planning()) return Place({&part, 1}, k, options);
  std::vector<std::byte> encoded(static_cast<size_t>(DTypeBytes(dtype, rows * k)));
  FindQuantFormat(dtype)->encode(values.data(), encoded.data(), rows * k);
  part.data = encoded.data();
  return Place({&part, 1}, k, options);
}

Result<PackedMatrix> WeightReader::Recoded(const RowsOf& whole, int64_t num_kept, int64_t k, DType dtype) {
  ASSIGN_OR_RETURN(const SourceTensor* tensor, Require(whole.ref, whole.rows, k));
  if (tensor->dtype == DType::kFP8E4M3 || k % GetDTypeInfo(dtype).block_size != 0) {
    return Unsupported("{}: tensor '{}' of type {} as {}", source_.place(), tensor->name, DTypeName(tensor->dtype), DTypeName(dtype));
  }
  PackOptions options = options_;
  options.borrow = false;
  MatrixPart part{.dtype = dtype, .rows = num_kept};
  if (planning()) return Place({&part, 1}, k, options);
  ASSIGN_OR_RETURN(const std::byte* data, Bytes(*tensor, whole.ref));
  const QuantFormat& from = *FindQuantFormat(tensor->dtype);
  const QuantFormat& to = *FindQuantFormat(dtype);
  std::vector<std::byte> encoded(static_cast<size_t>(DTypeBytes(dtype, num_kept * k)));
  constexpr int64_t kRows = 64;
  const auto recode = [&](int64_t chunk, int) {
    const int64_t first = chunk * kRows, count = std::min(kRows, num_kept - first) * k;
    std::vector<float> values(static_cast<size_t>(count));
    from.decode(data + DTypeBytes(tensor->dtype, first * k), values.data(), count);
    to.encode(values.data(), encoded.data() + DTypeBytes(dtype, first * k), count);
  };
  const int64_t num_chunks = (num_kept + kRows - 1) / kRows;
  if (options_.pool != nullptr) options_.pool->ParallelFor(num_chunks, recode);
  else for (int64_t chunk = 0; chunk < num_chunks; ++chunk) recode(chunk, 0);
  part.data = encoded.data();
  return Place({&part, 1}, k, options);
}

Result<HeadMatrices> WeightReader::DerivedHeads(std::span<const float> values, int32_t num_heads, int64_t n, int64_t k,
                                                DType dtype) {
  HeadMatrices heads{.matrices = {}, .num_heads = num_heads, .n = n, .k = k};
  const bool stacked = home_ == DeviceType::kCuda;
  const int64_t rows = stacked ? num_heads * n : n;
  for (int64_t first = 0; first < num_heads * n; first += rows) {
    const auto part = planning() ? values : values.subspan(static_cast<size_t>(first * k), static_cast<size_t>(rows * k));
    ASSIGN_OR_RETURN(PackedMatrix matrix, Derived(part, rows, k, dtype));
    heads.matrices.push_back(std::move(matrix));
  }
  return heads;
}

Status WeightReader::Finish(ExpertMatrices* experts) {
  if (home_ != DeviceType::kCuda) return Status::Ok();
  const auto table_bytes = static_cast<int64_t>(experts->experts.size() * sizeof(void*));
  const bool scales = experts->experts.front().dtype == DType::kFP8E4M3;
  cuda_bytes_ += (scales ? 2 : 1) * CudaUploader::BytesOf(table_bytes);
  if (planning()) return Status::Ok();
  std::vector<const std::byte*> data;
  std::vector<const float*> block_scales;
  for (const PackedMatrix& matrix : experts->experts) {
    data.push_back(matrix.data);
    block_scales.push_back(matrix.block_scales);
  }
  ASSIGN_OR_RETURN(const std::byte* data_table, uploader_->Bytes(data.data(), table_bytes));
  experts->device_data = reinterpret_cast<const std::byte* const*>(data_table);
  if (!scales) return Status::Ok();
  ASSIGN_OR_RETURN(const std::byte* scale_table, uploader_->Bytes(block_scales.data(), table_bytes));
  experts->device_scales = reinterpret_cast<const float* const*>(scale_table);
  return Status::Ok();
}

Result<std::vector<float>> WeightReader::Values(const WeightRef& ref, int64_t rows, int64_t k) {
  ASSIGN_OR_RETURN(const SourceTensor* tensor, Require(ref, rows, k));
  const float* scales = nullptr;
  if (tensor->dtype == DType::kFP8E4M3) {
    ASSIGN_OR_RETURN(scales, BlockScales(*tensor, rows, k));
  }
  if (mode_ == Mode::kPlan) return std::vector<float>();
  std::vector<float> values(static_cast<size_t>(rows * k));
  ASSIGN_OR_RETURN(const std::byte* data, Bytes(*tensor, ref));
  FindQuantFormat(tensor->dtype)->decode(data, values.data(), rows * k);
  if (scales != nullptr) {
    const int64_t blocks_per_row = (k + kFp8BlockSize - 1) / kFp8BlockSize;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < k; ++col) {
        values[row * k + col] *= scales[row / kFp8BlockSize * blocks_per_row + col / kFp8BlockSize];
      }
    }
  }
  return values;
}

Result<FloatArray> WeightReader::Vector(const WeightRef& ref, int64_t size) {
  ASSIGN_OR_RETURN(std::vector<float> values, Values(ref, 1, size));
  return Floats(std::move(values), size);
}

Result<FloatArray> WeightReader::Floats(std::vector<float> values, int64_t size) {
  const int64_t bytes = size * static_cast<int64_t>(sizeof(float));
  if (home_ != DeviceType::kCuda) {
    owned_bytes_ += bytes;
    return FloatArray(std::move(values));
  }
  cuda_bytes_ += CudaUploader::BytesOf(bytes);
  if (planning()) return FloatArray::OnDevice(nullptr, size);
  ASSIGN_OR_RETURN(const std::byte* data, uploader_->Bytes(values.data(), bytes));
  return FloatArray::OnDevice(reinterpret_cast<const float*>(data), size);
}

void WeightReader::ReleaseFetched() {
  for (const auto& [tensor, bytes] : fetched_) {
    if (!options_.borrow || options_.isa != Isa::kRef) source_.Release(*tensor);
  }
  fetched_.clear();
}

}  // namespace cachalot
