// WeightReader: finds a model's tensors by role, checks their shapes and types, and packs them for the kernels.
// It runs in two modes over the same building code: kPlan checks and counts without reading a byte of weights, kLoad
// reads. So the memory plan is exact by construction, and an inconsistent file fails before anything is read.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "device/exec_context.h"
#include "device/float_array.h"
#include "kernels/head_matmul/head_matmul.h"
#include "kernels/matmul/packed_matrix.h"
#include "kernels/moe_matmul/moe_matmul.h"
#include "model/cuda_uploader.h"
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

  // uploader: where matrices of GPU layers go; may be null when planning, or when no layer is on the GPU.
  WeightReader(const TensorSource& source, SourceNaming naming, PackOptions options, Mode mode,
               CudaUploader* uploader = nullptr)
      : source_(source), naming_(naming), options_(options), uploader_(uploader), mode_(mode) {}

  // Where what is read from now on will live.
  void SetHome(DeviceType home) { home_ = home; }
  DeviceType home() const { return home_; }

  SourceNaming naming() const { return naming_; }
  bool planning() const { return mode_ == Mode::kPlan; }
  // Whether derived matrices keep F32 (the reference path).
  bool exact() const { return home_ == DeviceType::kCuda ? cuda_exact_ : options_.isa == Isa::kRef; }
  void SetCudaExact(bool exact) { cuda_exact_ = exact; }
  bool Has(const WeightRef& ref) const { return FindTensor(ref) != nullptr; }
  // kF32 when absent: callers use it to choose a layout, Matrix reports what is missing.
  DType TypeOf(const WeightRef& ref) const;

  // Says to a MatmulTap (if there is one) which tensor a matrix holds; Matrix does it by itself.
  void Tell(const PackedMatrix& matrix, const WeightRef& ref) const;
  // The parts stacked into one [sum of rows, k] matrix; all must have one type.
  Result<PackedMatrix> Matrix(std::span<const RowsOf> parts, int64_t k);
  // For look-ups only (an untied embedding): row-major, left in the file where that is mapped.
  Result<PackedMatrix> Table(const WeightRef& ref, int64_t rows, int64_t k);
  // A matrix made of values that were computed here, stored as `dtype` (F32, F16 or BF16); in kPlan mode they are not read.
  Result<PackedMatrix> Derived(std::span<const float> values, int64_t rows, int64_t k, DType dtype);
  // The first `num_kept` rows of a tensor in another type, rounded anew. Not for FP8 with block scales.
  Result<PackedMatrix> Recoded(const RowsOf& whole, int64_t num_kept, int64_t k, DType dtype);
  // The same as Derived for the heads of a layer: values [num_heads, n, k].
  Result<HeadMatrices> DerivedHeads(std::span<const float> values, int32_t num_heads, int64_t n, int64_t k, DType dtype);
  // Tables in device memory that say where the experts' matrices are; nothing on the CPU.
  Status Finish(ExpertMatrices* experts);
  // Rows of a matrix in F32, block scales applied; in kPlan mode checked, and empty.
  Result<std::vector<float>> Values(const WeightRef& ref, int64_t rows, int64_t k);
  Result<FloatArray> Vector(const WeightRef& ref, int64_t size);
  Result<FloatArray> Floats(std::vector<float> values, int64_t size);

  // Gives mapped pages (and memory) of all that was fetched since the last call back.
  void ReleaseFetched();

  int64_t owned_bytes() const { return owned_bytes_; }        // by packed matrices and vectors
  int64_t borrowed_bytes() const { return borrowed_bytes_; }  // left in the file
  int64_t cuda_bytes() const { return cuda_bytes_; }          // in device memory

 private:
  const SourceTensor* FindTensor(const WeightRef& ref) const;
  Result<const SourceTensor*> Require(const WeightRef& ref, int64_t rows, int64_t k) const;
  Result<const float*> BlockScales(const SourceTensor& tensor, int64_t rows, int64_t k);
  // The bytes of `ref`'s rows: of its slice where experts are stacked.
  Result<const std::byte*> Bytes(const SourceTensor& tensor, const WeightRef& ref);
  // Counts, and (unless planning) packs or uploads.
  Result<PackedMatrix> Place(std::span<const MatrixPart> parts, int64_t k, const PackOptions& options);
  bool Stacked(const WeightRef& ref) const { return ref.num_experts > 0 && naming_ == SourceNaming::kGguf; }

  const TensorSource& source_;
  const SourceNaming naming_;
  const PackOptions options_;
  CudaUploader* const uploader_;
  const Mode mode_;
  DeviceType home_ = DeviceType::kCpu;
  bool cuda_exact_ = false;
  int64_t owned_bytes_ = 0;
  int64_t borrowed_bytes_ = 0;
  int64_t cuda_bytes_ = 0;
  std::map<const SourceTensor*, TensorBytes> fetched_;
  BufferArena arena_;  // its buffers outlive it
};

}  // namespace cachalot
