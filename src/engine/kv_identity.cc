#include "engine/kv_identity.h"

#include <xxhash.h>

#include <algorithm>
#include <vector>

#include "base/file.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxSampledBytes = 256;
constexpr int64_t kMaxFetchedBytes = 64 << 10;
constexpr int64_t kMaxHeadBytes = 64 << 20;

class Hash {
 public:
  void Add(const void* data, size_t size) {
    const uint64_t length = size;  // so that no two lists run together
    state_ = XXH3_128bits_withSeed(&length, sizeof(length), state_.low64 ^ state_.high64);
    const XXH128_hash_t more = XXH3_128bits_withSeed(data, size, state_.low64);
    state_ = {more.low64 ^ state_.high64, more.high64 + state_.low64};
  }
  void Add(const std::string& text) { Add(text.data(), text.size()); }
  std::string Hex() const { return fmt::format("{:016x}{:016x}", state_.high64, state_.low64); }

 private:
  XXH128_hash_t state_ = {};
};

}  // namespace

Result<std::string> KvIdentity(const std::string& architecture, const TensorSource& source, WeightsSeen seen,
                               const std::string& kv_types, int32_t block_tokens) {
  Hash hash;
  for (const SourceTensor& tensor : source.tensors()) {
    hash.Add(tensor.name);
    hash.Add(DTypeName(tensor.dtype));
    hash.Add(tensor.dims, sizeof(tensor.dims[0]) * static_cast<size_t>(tensor.num_dims));
    // What is not mapped is read, or even made, as a whole.
    if (seen == WeightsSeen::kSmall && tensor.num_bytes() > kMaxFetchedBytes) continue;
    ASSIGN_OR_RETURN(const TensorBytes bytes, source.Fetch(tensor));
    hash.Add(bytes.data, static_cast<size_t>(seen == WeightsSeen::kAll ? bytes.size : std::min(bytes.size, kMaxSampledBytes)));
  }
  return fmt::format("{}-{}-{}-{}", architecture, hash.Hex(), kv_types, block_tokens);
}

Result<std::string> KvOrigin(const std::string& path, const std::string& library) {
  Hash hash;
  std::vector<std::string> files = {"/proc/self/exe"};
  // The head of a GGUF file is its configuration.
  if (!path.empty()) files.push_back(IsDirectory(path) ? path + "/config.json" : path);
  std::vector<std::byte> bytes;
  for (const std::string& name : files) {
    ASSIGN_OR_RETURN(const auto file, File::Open(name));
    bytes.resize(static_cast<size_t>(std::min(file->size(), kMaxHeadBytes)));
    RETURN_IF_ERROR(file->ReadAt(0, bytes));
    hash.Add(bytes.data(), bytes.size());
  }
  if (!library.empty()) {
    ASSIGN_OR_RETURN(const auto file, File::Open(library));
    for (int64_t offset = 0; offset < file->size(); offset += kMaxHeadBytes) {
      bytes.resize(static_cast<size_t>(std::min(file->size() - offset, kMaxHeadBytes)));
      RETURN_IF_ERROR(file->ReadAt(offset, bytes));
      hash.Add(bytes.data(), bytes.size());
    }
  }
  return hash.Hex();
}

}  // namespace cachalot
