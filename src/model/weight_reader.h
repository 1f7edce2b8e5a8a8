// WeightReader: finds a model's tensors by role, checks their shapes and types, and packs them for the kernels.
// It runs in two modes over the same building code: kPlan checks and counts without reading a byte of weights, kLoad
// reads. So the memory plan is exact by construction, and an inconsistent file fails before anything is read.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/matmul/packed_matrix.h"
#include "model/tensor_table.h"
#include "weights/tensor_source.h"

namespace cachalot {

struct WeightRef {
  TensorRole role;
  int32_t layer = 0;
  int32_t expert = 0;
  int32_t num_experts = 0;  // > 0: in GGUF the tensor is stacked [num_experts, rows, cols]
};

// Some rows of a stacked matrix.
struct RowsOf {
  WeightRef ref;
  int64_t rows = 0;
};

class WeightReader {
 public:
  enum class Mode { kPlan, kLoad };

  WeightReader(const TensorSource& source, SourceNaming naming, PackOptions options, Mode mode)
      : source_(source), naming_(naming), options_(options), mode_(mode) {}

  SourceNaming naming() const { return naming_; }
  bool planning() const { return mode_ == Mode::kPlan; }
  Isa isa() const { return options_.isa; }
  bool Has(const WeightRef& ref) const { return FindTensor(ref) != nullptr; }
  // kF32 when absent: callers use it to choose a layout, Matrix reports what is missing.
  DType TypeOf(const WeightRef& ref) const;

  // The parts stacked into one [sum of rows, k] matrix; all must have one type.
  Result<PackedMatrix> Matrix(std::span<const RowsOf> parts, int64_t k);
  // For look-ups only (an untied embedding): row-major, left in the file where that is mapped.
  Result<PackedMatrix> Table(const WeightRef& ref, int64_t rows, int64_t k);
  // A matrix made of values that were computed here, stored as `dtype` (F32, F16 or BF16); in kPlan mode they are not read.
  Result<PackedMatrix> Derived(std::span<const float> values, int64_t rows, int64_t k, DType dtype);
  // Rows of a matrix in F32, block scales applied; in kPlan mode checked, and empty.
  Result<std::vector<float>> Values(const WeightRef& ref, int64_t rows, int64_t k);
  Result<std::vector<float>> Vector(const WeightRef& ref, int64_t size);

  // Gives mapped pages (and memory) of all that was fetched since the last call back.
  void ReleaseFetched();

  int64_t owned_bytes() const { return owned_bytes_; }        // by packed matrices and vectors
  int64_t borrowed_bytes() const { return borrowed_bytes_; }  // left in the file

 private:
  const SourceTensor* FindTensor(const WeightRef& ref) const;
  Result<const SourceTensor*> Require(const WeightRef& ref, int64_t rows, int64_t k) const;
  Result<const float*> BlockScales(const SourceTensor& tensor, int64_t rows, int64_t k);
  // The bytes of `ref`'s rows: of its slice where experts are stacked.
  Result<const std::byte*> Bytes(const SourceTensor& tensor, const WeightRef& ref);
  bool Stacked(const WeightRef& ref) const { return ref.num_experts > 0 && naming_ == SourceNaming::kGguf; }

  const TensorSource& source_;
  const SourceNaming naming_;
  const PackOptions options_;
  const Mode mode_;
  int64_t owned_bytes_ = 0;
  int64_t borrowed_bytes_ = 0;
  std::map<const SourceTensor*, TensorBytes> fetched_;
};

}  // namespace cachalot
