// TensorSource: where a model's weights come from (GGUF, safetensors, generated), as one interface.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/buffer.h"
#include "tensor/tensor_view.h"

namespace cachalot {

struct SourceTensor {
  std::string name;          // in the source's own naming
  DType dtype = DType::kF32;
  int num_dims = 0;
  int64_t dims[kMaxDims] = {};  // row-major: slowest first
  int64_t num_values() const {
    int64_t count = 1;
    for (int i = 0; i < num_dims; ++i) count *= dims[i];
    return count;
  }
  int64_t num_bytes() const { return DTypeBytes(dtype, num_values()); }
};

// The bytes of a tensor for as long as this lives: mapped, or read into memory of its own.
struct TensorBytes {
  const std::byte* data = nullptr;
  int64_t size = 0;
  bool mapped = false;       // data stays valid for as long as the source
  Buffer owned;
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  virtual const std::string& place() const = 0;  // the file or folder, for messages
  virtual std::span<const SourceTensor> tensors() const = 0;
  virtual const SourceTensor* Find(std::string_view name) const = 0;
  virtual Result<TensorBytes> Fetch(const SourceTensor& tensor) const = 0;
  // The caller has copied what it wants: mapped pages go back to the kernel, so that a repacked model is held once.
  virtual void Release(const SourceTensor& tensor) const = 0;
  // mlock of what stays mapped; nothing to do for sources that own no file.
  virtual Status Lock() const { return Status::Ok(); }
};

}  // namespace cachalot
