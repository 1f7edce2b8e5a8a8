#include "tasks/importance.h"

#include <cmath>
#include <span>

#include "base/file.h"
#include "formats/byte_reader.h"
#include "formats/gguf.h"
#include "formats/text.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxEntries = 1 << 20;
constexpr int64_t kMaxNameBytes = 1024;
constexpr int64_t kMaxValues = int64_t{1} << 31;  // of an entry: 512 experts of 4M columns

Status CheckValues(const std::string& path, const std::string& name, std::span<const float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i]) || values[i] < 0) {
      return Corrupt("{}: '{}' value {} is {}, must be a number of at least 0", path, Printable(name), i,
                     values[i]);
    }
  }
  return Status::Ok();
}

Result<std::vector<float>> ReadTensor(const GgufFile& file, const GgufTensor& tensor) {
  if (tensor.dtype != DType::kF32) {
    return Corrupt("{}: '{}' is {}, must be F32", file.path(), Printable(tensor.name),
                   DTypeName(tensor.dtype));
  }
  std::vector<float> values(static_cast<size_t>(tensor.bytes) / sizeof(float));
  RETURN_IF_ERROR(file.files()[static_cast<size_t>(tensor.file_idx)]->ReadAt(
      tensor.offset, std::as_writable_bytes(std::span(values))));
  return values;
}

// Two tensors for each weight: NAME.in_sum2 [matrices, columns] and NAME.counts [matrices, 1].
Result<ImportanceMatrix> ReadGguf(const std::string& path) {
  ASSIGN_OR_RETURN(const auto file, GgufFile::Open(path));
  ASSIGN_OR_RETURN(const std::string type, file->StringOr("general.type", ""));
  if (type != "imatrix") {
    return InvalidArgument("{}: general.type is '{}', not an importance matrix", path, Printable(type));
  }
  ImportanceMatrix matrix;
  matrix.path = path;
  ASSIGN_OR_RETURN(matrix.num_chunks, file->IntOr("imatrix.chunk_count", 0, 0, INT64_MAX));
  if (const auto* datasets = file->Strings("imatrix.datasets"); datasets != nullptr && !datasets->empty()) {
    matrix.dataset = datasets->front();
  }
  constexpr std::string_view kSums = ".in_sum2";
  for (const GgufTensor& tensor : file->tensors()) {
    if (!tensor.name.ends_with(kSums)) continue;
    const std::string name = tensor.name.substr(0, tensor.name.size() - kSums.size());
    const GgufTensor* count_tensor = file->FindTensor(name + ".counts");
    if (count_tensor == nullptr) return Corrupt("{}: '{}.counts' is missing", path, Printable(name));
    ASSIGN_OR_RETURN(std::vector<float> sums, ReadTensor(*file, tensor));
    ASSIGN_OR_RETURN(const std::vector<float> counts, ReadTensor(*file, *count_tensor));
    if (counts.empty() || sums.size() % counts.size() != 0) {
      return Corrupt("{}: '{}' has {} sums for {} counts", path, Printable(name), sums.size(), counts.size());
    }
    RETURN_IF_ERROR(CheckValues(path, count_tensor->name, counts));
    const size_t columns = sums.size() / counts.size();
    for (size_t i = 0; i < sums.size(); ++i) {
      const float count = counts[i / columns];
      sums[i] = count > 0 ? sums[i] / count : 1.0f;  // an expert that was never chosen: all columns alike
    }
    RETURN_IF_ERROR(CheckValues(path, tensor.name, sums));
    matrix.values.emplace(name, std::move(sums));
  }
  if (matrix.values.empty()) return Corrupt("{}: no tensor ends in {}", path, kSums);
  return matrix;
}

// A count, then for each entry: length and name, number of calls, number of values, the values times the
// calls. Newer files add the number of chunks and the dataset's name.
Result<ImportanceMatrix> ReadBinary(const File& file) {
  ByteReader in(file);
  ImportanceMatrix matrix;
  matrix.path = file.path();
  const auto string_of = [&](int64_t bytes) {
    std::string text(static_cast<size_t>(bytes), '\0');
    in.ReadBytes(std::as_writable_bytes(std::span(text)));
    return text;
  };
  const int64_t num_entries = in.Read<int32_t>();
  if (!in.ok() || num_entries < 1 || num_entries > kMaxEntries) {
    return Corrupt("{}: {} entries, must be 1..{}: not an importance matrix", file.path(), num_entries,
                   kMaxEntries);
  }
  for (int64_t e = 0; e < num_entries; ++e) {
    const int64_t name_bytes = in.Read<int32_t>();
    if (!in.ok() || name_bytes < 1 || name_bytes > std::min(kMaxNameBytes, in.remaining())) {
      return Corrupt("{}: entry {}: a name of {} bytes, must be 1..{}", file.path(), e, name_bytes,
                     kMaxNameBytes);
    }
    const std::string name = string_of(name_bytes);
    const int64_t num_calls = in.Read<int32_t>(), num_values = in.Read<int32_t>();
    if (!in.ok() || num_values < 1 || num_values > kMaxValues ||
        num_values > in.remaining() / static_cast<int64_t>(sizeof(float))) {
      return Corrupt("{}: '{}': {} values, {} bytes are left", file.path(), Printable(name), num_values,
                     in.remaining());
    }
    std::vector<float> values(static_cast<size_t>(num_values));
    in.ReadBytes(std::as_writable_bytes(std::span(values)));
    RETURN_IF_ERROR(in.status());
    if (num_calls > 0) {
      for (float& value : values) value /= static_cast<float>(num_calls);
    }
    RETURN_IF_ERROR(CheckValues(file.path(), name, values));
    matrix.values.insert_or_assign(name, std::move(values));
  }
  if (in.remaining() >= 8) {
    matrix.num_chunks = in.Read<int32_t>();
    const int64_t bytes = in.Read<int32_t>();
    if (bytes > 0 && bytes <= std::min<int64_t>(4096, in.remaining())) matrix.dataset = string_of(bytes);
  }
  return matrix;
}

}  // namespace

Result<ImportanceMatrix> ReadImportanceMatrix(const std::string& path) {
  ASSIGN_OR_RETURN(const auto file, File::Open(path));
  ByteReader in(*file);
  if (in.remaining() >= 4 && in.Read<uint32_t>() == 0x46554747) return ReadGguf(path);  // "GGUF"
  return ReadBinary(*file);
}

}  // namespace cachalot
