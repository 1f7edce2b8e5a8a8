// What a model's files hold, without loading a weight: tensors, types and metadata, for `inspect`.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"

namespace cachalot {

struct ListedTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> dims;  // row-major
  int64_t bytes = 0;
};

struct TypeTotal {
  DType dtype = DType::kF32;
  int64_t tensors = 0;
  int64_t values = 0;
  int64_t bytes = 0;
};

struct ModelFiles {
  std::string format;  // "GGUF v3", "safetensors"
  int64_t num_files = 0;
  int64_t file_bytes = 0;
  std::vector<ListedTensor> tensors;
  std::vector<TypeTotal> types;  // largest first
  // Key, type and value on one line each: a GGUF file's metadata, or config.json's fields.
  struct Field {
    std::string key, type, value;
  };
  std::vector<Field> metadata;

  int64_t num_values() const;
  int64_t tensor_bytes() const;
};

// A GGUF file or a Hugging Face folder.
Result<ModelFiles> ListModelFiles(const std::string& path);
// The tensors that `dummy SPEC` would have.
Result<ModelFiles> ListDummyFiles(const std::string& spec, int32_t layers, const std::string& type);

}  // namespace cachalot
