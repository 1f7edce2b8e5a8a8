// GgufFile: the metadata and the tensor directory of a GGUF file (v2 and v3, little endian), or of all files
// of a split. Invariant: of an opened file everything is checked: each tensor's shape, type and bytes fit
// each other, lie inside their file and overlap no other tensor; names and keys are unique. Tensor data is
// never touched here.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "formats/gguf_value.h"
#include "tensor/dtype.h"
#include "tensor/tensor_view.h"

namespace cachalot {

struct GgufHeader;  // gguf_header.h

struct GgufTensor {
  std::string name;
  DType dtype = DType::kF32;
  int num_dims = 0;  // 1 … kMaxDims
  std::array<int64_t, kMaxDims>
      dims{};          // row-major, slowest first: the reverse of the file's "ne"; unused are 0
  int file_idx = 0;    // into GgufFile::files()
  int64_t offset = 0;  // from the start of that file
  int64_t bytes = 0;
};

class GgufFile {
 public:
  // Any file of a split (name-00002-of-00003.gguf) opens them all; they must lie in one folder.
  static Result<std::shared_ptr<const GgufFile>> Open(const std::string& path);
  // The same checks over a single file's bytes in memory (tests, fuzzing); files() is empty then.
  static Result<std::shared_ptr<const GgufFile>> Parse(std::span<const std::byte> bytes,
                                                       const std::string& place);

  // All of the metadata in file order (of a split: the first file's).
  const std::vector<GgufEntry>& entries() const { return entries_; }
  const GgufValue* Find(std::string_view key) const;  // nullptr when absent
  bool Has(std::string_view key) const { return Find(key) != nullptr; }

  // Integers of any width; bounds are inclusive. A missing key is kNotFound, a wrong type or a value out of
  // bounds kInvalidArgument, each naming file, key and bounds.
  Result<int64_t> Int(std::string_view key, int64_t min, int64_t max) const;
  Result<int64_t> IntOr(std::string_view key, int64_t default_value, int64_t min, int64_t max) const;
  // Any number; must be finite.
  Result<double> Float(std::string_view key, double min = kLowest, double max = kHighest) const;
  Result<double> FloatOr(std::string_view key, double default_value, double min = kLowest,
                         double max = kHighest) const;
  Result<bool> Bool(std::string_view key) const;
  Result<bool> BoolOr(std::string_view key, bool default_value) const;
  Result<std::string> String(std::string_view key) const;
  Result<std::string> StringOr(std::string_view key, std::string_view default_value) const;

  // nullptr when the key is absent or no array of strings.
  const std::vector<std::string>* Strings(std::string_view key) const;
  Result<std::vector<int64_t>> Ints(std::string_view key, int64_t min = INT64_MIN,
                                    int64_t max = INT64_MAX) const;
  Result<std::vector<float>> Floats(std::string_view key) const;
  // A value that is given once for all layers or as an array of one per layer (head_count,
  // feed_forward_length): num_layers values. An array may be longer than num_layers (files that count MTP
  // layers), never shorter.
  Result<std::vector<int64_t>> IntPerLayer(std::string_view key, int64_t num_layers, int64_t min,
                                           int64_t max) const;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in file order
  const GgufTensor* FindTensor(std::string_view name) const;           // nullptr when absent
  const std::vector<std::shared_ptr<const File>>& files() const { return files_; }

  int version() const { return version_; }
  int64_t alignment() const { return alignment_; }
  const std::string& path() const { return path_; }       // the first file's
  int64_t total_bytes() const { return total_bytes_; }    // of all files
  int64_t tensor_bytes() const { return tensor_bytes_; }  // of all tensors, without padding

 private:
  static constexpr double kLowest = std::numeric_limits<double>::lowest();
  static constexpr double kHighest = std::numeric_limits<double>::max();

  GgufFile() = default;
  static Result<std::shared_ptr<GgufFile>> OpenOne(const std::string& path);
  Status TakeHeader(GgufHeader header);
  Status IndexTensors();
  Status Missing(std::string_view key, std::string_view wanted) const;
  Status Wrong(std::string_view key, const GgufValue& value, std::string_view wanted) const;

  std::string path_;
  int version_ = 0;
  int64_t alignment_ = 0;
  int64_t total_bytes_ = 0;
  int64_t tensor_bytes_ = 0;
  std::vector<GgufEntry> entries_;
  std::vector<GgufTensor> tensors_;
  std::vector<std::shared_ptr<const File>> files_;
  // Views into entries_ and tensors_, which never change again.
  std::unordered_map<std::string_view, size_t> entry_index_;
  std::unordered_map<std::string_view, size_t> tensor_index_;
};

}  // namespace cachalot
