// SafetensorsWriter: a .safetensors file, or a folder of shards with its index, from a list of tensors and a
// callback that streams each tensor's bytes. Every file appears whole or not at all; memory use does not grow
// with the tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/status.h"
#include "formats/file_writer.h"
#include "formats/safetensors.h"

namespace cachalot {

class SafetensorsWriter {
 public:
  // Puts exactly tensor.bytes bytes into `sink`, in as many pieces as it likes.
  using Fill = std::function<Status(const SafetensorsTensor& tensor, ByteSink& sink)>;

  // kInvalidArgument when the name is taken or no valid UTF-8, for a negative dimension, or for a
  // block-quantised type.
  Status AddTensor(const std::string& name, DType dtype, std::span<const int64_t> dims);
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

  // One file. Within it the types with the larger values come first, so that every tensor is aligned; `fill`
  // is called once per tensor in that order.
  Status WriteFile(const std::string& path, const Fill& fill) const;

  // <folder>/model.safetensors, or, when the tensors take more than max_shard_bytes, shards filled in the
  // order of AddTensor and model.safetensors.index.json, which is written last. The folder must exist, and
  // must not hold a model of the other form, which a reader could take for this one.
  Status WriteFolder(const std::string& folder, int64_t max_shard_bytes, const Fill& fill) const;

 private:
  std::vector<SafetensorsTensor> tensors_;
  std::unordered_set<std::string> names_;
};

}  // namespace cachalot
