// SafetensorsFolder: the tensor directory of a Hugging Face folder (model.safetensors, or the shards that
// model.safetensors.index.json lists) or of one .safetensors file.
// Invariant: of an opened folder each tensor's shape, type and bytes fit each other, lie inside their file
// and overlap no other tensor; names are unique. Tensor data is never touched here, and may start at any
// byte: it need not be aligned.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "tensor/dtype.h"

namespace cachalot {

inline constexpr size_t kMaxSafetensorsDims = 8;

struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> dims;  // row-major; empty for a scalar; a dimension may be 0
  int file_idx = 0;           // into SafetensorsFolder::files()
  int64_t offset = 0;         // from the start of that file
  int64_t bytes = 0;
};

class SafetensorsFolder {
 public:
  static Result<std::shared_ptr<const SafetensorsFolder>> Open(const std::string& folder);
  static Result<std::shared_ptr<const SafetensorsFolder>> OpenFile(const std::string& path);
  // The same checks over a single file's bytes in memory (tests, fuzzing); files() is empty then.
  static Result<std::shared_ptr<const SafetensorsFolder>> Parse(std::span<const std::byte> bytes,
                                                                const std::string& place);

  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }  // by file, then by offset
  const SafetensorsTensor* Find(std::string_view name) const;                 // nullptr when absent
  const std::vector<std::shared_ptr<const File>>& files() const { return files_; }
  const std::string& path() const { return path_; }       // what was opened
  int64_t total_bytes() const { return total_bytes_; }    // of all files
  int64_t tensor_bytes() const { return tensor_bytes_; }  // of all tensors

 private:
  SafetensorsFolder() = default;
  Status OpenShards(const std::string& folder, const std::string& index_path);
  Status Index();

  std::string path_;
  int64_t total_bytes_ = 0;
  int64_t tensor_bytes_ = 0;
  std::vector<SafetensorsTensor> tensors_;
  std::vector<std::shared_ptr<const File>> files_;
  std::unordered_map<std::string_view, size_t> index_;  // views into tensors_, which never changes again
};

}  // namespace cachalot
