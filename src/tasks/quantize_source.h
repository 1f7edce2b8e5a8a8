// What `quantize` reads: a GGUF file, or a Hugging Face folder seen as the GGUF file that it becomes. Invariant: the
// tensors have GGUF's names and shapes, so that nothing behind this line knows where a model came from; weights are
// read row by row, and memory does not grow with the model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/gguf.h"
#include "tasks/quantize_recipe.h"

namespace cachalot {

class QuantizeSource {
 public:
  virtual ~QuantizeSource() = default;

  const std::string& place() const { return place_; }
  const std::vector<GgufEntry>& entries() const { return entries_; }
  // dtype: what keeps every value (F32 for FP8 weights, whose scales are applied). file_idx and offset mean nothing.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  // The type in the files.
  DType StoredType(size_t tensor) const { return stored_types_[tensor]; }
  const QuantizeFacts& facts() const { return facts_; }

  // The bytes as they are, in tensors()[tensor].dtype; empty where a tensor must be composed of rows.
  virtual std::span<const std::byte> Raw(size_t tensor) const = 0;
  // Values of one row; any number of threads at once.
  virtual void DecodeRow(size_t tensor, int64_t row, float* values) const = 0;
  // These rows have been read for good: mapped pages may go.
  virtual void ReleaseRows(size_t tensor, int64_t begin, int64_t count) const = 0;

 protected:
  std::string place_;
  std::vector<GgufEntry> entries_;
  std::vector<GgufTensor> tensors_;
  std::vector<DType> stored_types_;
  QuantizeFacts facts_;
};

// A folder with config.json and safetensors files, or a GGUF file (any of a split).
Result<std::unique_ptr<QuantizeSource>> OpenQuantizeSource(const std::string& path);
Result<std::unique_ptr<QuantizeSource>> OpenHfQuantizeSource(const std::string& folder);

}  // namespace cachalot
