#include "engine/kv_identity.h"

#include <elf.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxSampledBytes = 256;
constexpr int64_t kMaxFetchedBytes = 64 << 10;
constexpr int64_t kMaxHeadBytes = 64 << 20;
constexpr uint64_t kMaxNoteBytes = 64 << 10;

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

template <typename T>
bool ReadOne(const File& file, uint64_t offset, T* out) {
  return offset <= INT64_MAX &&
         file.ReadAt(static_cast<int64_t>(offset), std::as_writable_bytes(std::span(out, 1))).ok();
}

// "": there is none.
std::string BuildIdInNotes(std::string_view notes) {
  const auto padded = [](uint64_t size) { return (size + 3) / 4 * 4; };
  Elf64_Nhdr note;
  while (notes.size() >= sizeof(note)) {
    std::memcpy(&note, notes.data(), sizeof(note));
    notes.remove_prefix(sizeof(note));
    const uint64_t name_bytes = padded(note.n_namesz), bytes = padded(note.n_descsz);
    if (notes.size() < name_bytes + note.n_descsz) return "";
    if (note.n_type == NT_GNU_BUILD_ID && notes.substr(0, note.n_namesz) == std::string_view("GNU", 4)) {
      return std::string(notes.substr(name_bytes, note.n_descsz));
    }
    notes.remove_prefix(std::min<uint64_t>(notes.size(), name_bytes + bytes));
  }
  return "";
}

// Of an ELF file, as the linker wrote it: a hash of all that is loaded. "": there is none.
std::string BuildIdOf(const File& file) {
  Elf64_Ehdr header;
  if (!ReadOne(file, 0, &header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_phentsize != sizeof(Elf64_Phdr)) {
    return "";
  }
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!ReadOne(file, header.e_phoff + i * sizeof(segment), &segment)) return "";
    if (segment.p_type != PT_NOTE || segment.p_filesz > kMaxNoteBytes || segment.p_offset > INT64_MAX)
      continue;
    std::string notes(segment.p_filesz, '\0');
    if (!file.ReadAt(static_cast<int64_t>(segment.p_offset), std::as_writable_bytes(std::span(notes))).ok())
      return "";
    if (std::string id = BuildIdInNotes(notes); !id.empty()) return id;
  }
  return "";
}

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
  if (library.empty()) return hash.Hex();
  ASSIGN_OR_RETURN(const auto file, File::Open(library));
  const int64_t size = file->size();
  hash.Add(&size, sizeof(size));
  // The linker's hash of the whole; where there is none it is made here.
  if (const std::string build_id = BuildIdOf(*file); !build_id.empty()) {
    hash.Add(build_id);
    return hash.Hex();
  }
  for (int64_t offset = 0; offset < size; offset += kMaxHeadBytes) {
    bytes.resize(static_cast<size_t>(std::min(size - offset, kMaxHeadBytes)));
    RETURN_IF_ERROR(file->ReadAt(offset, bytes));
    hash.Add(bytes.data(), bytes.size());
  }
  return hash.Hex();
}

}  // namespace cachalot
