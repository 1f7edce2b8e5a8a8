#include "formats/safetensors.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/byte_reader.h"
#include "formats/json.h"
#include "formats/text.h"

namespace cachalot {
namespace {

using nlohmann::json;

constexpr int64_t kMaxHeaderBytes = 100 << 20;  // the format's own limit
constexpr int64_t kMaxShards = 4096;
constexpr JsonLimits kHeaderLimits = {.max_depth = 8, .max_bytes = kMaxHeaderBytes, .unique_keys = true};

constexpr DType kDTypes[] = {DType::kF64,     DType::kF32,     DType::kF16, DType::kBF16,
                             DType::kFP8E4M3, DType::kFP8E5M2, DType::kI8,  DType::kU8,
                             DType::kI16,     DType::kI32,     DType::kI64, DType::kBool};

Result<DType> ParseSafetensorsDType(const std::string& name) {
  std::string known;
  for (const DType dtype : kDTypes) {
    if (name == DTypeName(dtype)) return dtype;
    known += (known.empty() ? "" : ", ") + std::string(DTypeName(dtype));
  }
  return Unsupported("dtype = \"{}\": must be one of {}", Printable(name), known);
}

bool ToOffset(const json& value, int64_t* out) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return false;
  *out = static_cast<int64_t>(value.get<uint64_t>());
  return true;
}

// One entry of the header; the offset stays relative to the data. Errors start with the field.
Status ParseTensor(const json& entry, SafetensorsTensor* tensor) {
  if (!entry.is_object()) return Corrupt("must be an object");
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) return Corrupt("dtype must be a string");
  ASSIGN_OR_RETURN(tensor->dtype, ParseSafetensorsDType(dtype->get_ref<const std::string&>()));

  const auto shape = entry.find("shape");
  if (shape == entry.end() || !shape->is_array() || shape->size() > kMaxSafetensorsDims) {
    return Corrupt("shape must be a list of at most {} dimensions", kMaxSafetensorsDims);
  }
  int64_t bytes = DTypeBytes(tensor->dtype, 1);
  for (const auto& dim : *shape) {
    int64_t number = 0;
    if (!ToOffset(dim, &number)) return Corrupt("shape = {}: must be sizes", JsonPreview(*shape));
    if (__builtin_mul_overflow(bytes, number, &bytes)) {
      return Corrupt("shape = {}: the number of bytes overflows", JsonPreview(*shape));
    }
    tensor->dims.push_back(number);
  }

  const auto offsets = entry.find("data_offsets");
  int64_t begin = 0;
  int64_t end = 0;
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 ||
      !ToOffset((*offsets)[0], &begin) || !ToOffset((*offsets)[1], &end) || begin > end) {
    return Corrupt("data_offsets must be [begin, end]");
  }
  if (end - begin != bytes) {
    return Corrupt("data_offsets = [{}, {}] are {} bytes, but shape {} of {} takes {}", begin, end,
                   end - begin, JsonPreview(*shape), DTypeName(tensor->dtype), bytes);
  }
  tensor->offset = begin;
  tensor->bytes = bytes;
  return Status::Ok();
}

// The tensors of one file in the order of their offsets, which become absolute.
Result<std::vector<SafetensorsTensor>> ParseHeader(ByteReader reader, const std::string& place) {
  const int64_t file_bytes = reader.remaining();
  const auto header_bytes = reader.Read<uint64_t>();
  if (!reader.ok()) return reader.status().WithContext(place + ": header length");
  if (header_bytes > static_cast<uint64_t>(std::min(kMaxHeaderBytes, reader.remaining()))) {
    return Corrupt("{}: header length = {}, must be at most {} and the {} bytes that follow", place,
                   header_bytes, kMaxHeaderBytes, reader.remaining());
  }
  std::string text(header_bytes, '\0');
  reader.ReadBytes(std::as_writable_bytes(std::span(text)));
  if (!reader.ok()) return reader.status().WithContext(place + ": header");
  ASSIGN_OR_RETURN(const json header, ParseJson(text, place + ": header", kHeaderLimits));
  if (!header.is_object()) return Corrupt("{}: header: holds {}, not an object", place, header.type_name());

  std::vector<SafetensorsTensor> tensors;
  tensors.reserve(header.size());
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    SafetensorsTensor tensor;
    tensor.name = name;
    const Status parsed = ParseTensor(entry, &tensor);
    if (!parsed.ok()) return parsed.WithContext(place + ": tensor '" + Printable(name) + "'");
    tensors.push_back(std::move(tensor));
  }
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return a.offset != b.offset ? a.offset < b.offset
                                : a.bytes < b.bytes;  // the empty ones before their neighbour
  });

  // The format wants the data covered from the first byte to the last, without holes: this finds overlaps
  // too.
  const int64_t data_start = 8 + static_cast<int64_t>(header_bytes);
  int64_t expected = 0;
  for (auto& tensor : tensors) {
    if (tensor.offset != expected) {
      return Corrupt("{}: tensor '{}': data_offsets begin at {}, {} the tensor before, which ends at {}",
                     place, Printable(tensor.name), tensor.offset,
                     tensor.offset < expected ? "inside" : "after a hole behind", expected);
    }
    expected += tensor.bytes;  // at most INT64_MAX: this is the tensor's own end
    if (expected > file_bytes - data_start) {
      return Corrupt(
          "{}: tensor '{}': data_offsets end at {}, but the file has {} bytes of data (cut short?)", place,
          Printable(tensor.name), expected, file_bytes - data_start);
    }
    tensor.offset += data_start;
  }
  if (expected != file_bytes - data_start) {
    return Corrupt("{}: {} bytes of data, but the tensors cover {}", place, file_bytes - data_start,
                   expected);
  }
  return tensors;
}

// A plain file name: an index must not reach outside of its folder.
bool IsShardName(std::string_view name) {
  return name.ends_with(".safetensors") && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

}  // namespace

Result<std::shared_ptr<const SafetensorsFolder>> SafetensorsFolder::OpenFile(const std::string& path) {
  ASSIGN_OR_RETURN(auto file, File::Open(path));
  std::shared_ptr<SafetensorsFolder> folder(new SafetensorsFolder);
  ASSIGN_OR_RETURN(folder->tensors_, ParseHeader(ByteReader(*file), path));
  folder->path_ = path;
  folder->total_bytes_ = file->size();
  folder->files_.push_back(std::move(file));
  RETURN_IF_ERROR(folder->Index());
  return std::shared_ptr<const SafetensorsFolder>(std::move(folder));
}

Result<std::shared_ptr<const SafetensorsFolder>> SafetensorsFolder::Parse(std::span<const std::byte> bytes,
                                                                          const std::string& place) {
  std::shared_ptr<SafetensorsFolder> folder(new SafetensorsFolder);
  ASSIGN_OR_RETURN(folder->tensors_, ParseHeader(ByteReader(bytes), place));
  folder->path_ = place;
  folder->total_bytes_ = static_cast<int64_t>(bytes.size());
  RETURN_IF_ERROR(folder->Index());
  return std::shared_ptr<const SafetensorsFolder>(std::move(folder));
}

Result<std::shared_ptr<const SafetensorsFolder>> SafetensorsFolder::Open(const std::string& path) {
  const std::string single = path + "/model.safetensors";
  const std::string index = path + "/model.safetensors.index.json";
  if (FileExists(single)) return OpenFile(single);
  if (!FileExists(index)) {
    return NotFound("{}: neither model.safetensors nor model.safetensors.index.json is there", path);
  }
  std::shared_ptr<SafetensorsFolder> folder(new SafetensorsFolder);
  folder->path_ = path;
  RETURN_IF_ERROR(folder->OpenShards(path, index));
  RETURN_IF_ERROR(folder->Index());
  return std::shared_ptr<const SafetensorsFolder>(std::move(folder));
}

// The index decides which tensor comes from which shard; a tensor that it does not list is not part of the
// model.
Status SafetensorsFolder::OpenShards(const std::string& folder, const std::string& index_path) {
  ASSIGN_OR_RETURN(const json index, ParseJsonFile(index_path, kHeaderLimits));
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end() || !weight_map->is_object()) {
    return Corrupt("{}: weight_map must be an object", index_path);
  }
  std::map<std::string, std::unordered_map<std::string_view, bool>> shards;  // name → its tensors, found yet?
  for (const auto& [tensor, shard] : weight_map->items()) {
    if (!shard.is_string() || !IsShardName(shard.get_ref<const std::string&>())) {
      return Corrupt("{}: weight_map: '{}' = {}: must be the name of a .safetensors file beside the index",
                     index_path, Printable(tensor), JsonPreview(shard));
    }
    shards[shard.get<std::string>()].emplace(tensor, false);
    if (static_cast<int64_t>(shards.size()) > kMaxShards) {
      return Corrupt("{}: weight_map: more than {} files", index_path, kMaxShards);
    }
  }
  for (auto& [shard, wanted] : shards) {
    const std::string path = folder + "/" + shard;
    ASSIGN_OR_RETURN(auto file, File::Open(path));
    ASSIGN_OR_RETURN(auto tensors, ParseHeader(ByteReader(*file), path));
    for (auto& tensor : tensors) {
      const auto it = wanted.find(tensor.name);
      if (it == wanted.end()) continue;
      it->second = true;
      tensor.file_idx = static_cast<int>(files_.size());
      tensors_.push_back(std::move(tensor));
    }
    for (const auto& [name, found] : wanted) {
      if (!found) {
        return Corrupt("{}: tensor '{}', which {} places here, is missing", path, Printable(name),
                       index_path);
      }
    }
    total_bytes_ += file->size();
    files_.push_back(std::move(file));
  }
  return Status::Ok();
}

Status SafetensorsFolder::Index() {
  index_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!index_.emplace(tensors_[i].name, i).second) {
      return Corrupt("{}: tensor '{}' is given twice", path_, Printable(tensors_[i].name));
    }
    tensor_bytes_ += tensors_[i].bytes;
  }
  return Status::Ok();
}

const SafetensorsTensor* SafetensorsFolder::Find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace cachalot
