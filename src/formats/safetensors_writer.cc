#include "formats/safetensors_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/text.h"

namespace cachalot {
namespace {

using nlohmann::json;
using TensorPtrs = std::vector<const SafetensorsTensor*>;

// One file of these tensors, in an order that aligns each.
Status WriteShard(const std::string& path, TensorPtrs tensors, const SafetensorsWriter::Fill& fill) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto* a, const auto* b) {
    return GetDTypeInfo(a->dtype).block_bytes > GetDTypeInfo(b->dtype).block_bytes;
  });
  json header = {{"__metadata__", {{"format", "pt"}}}};  // transformers refuses a file without it
  int64_t offset = 0;
  for (const auto* tensor : tensors) {
    header[tensor->name] = {{"dtype", DTypeName(tensor->dtype)},
                            {"shape", tensor->dims},
                            {"data_offsets", {offset, offset + tensor->bytes}}};
    offset += tensor->bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data then starts aligned

  ASSIGN_OR_RETURN(auto out, FileWriter::Create(path));
  const uint64_t header_bytes = text.size();
  RETURN_IF_ERROR(out->Append(std::as_bytes(std::span(&header_bytes, 1))));
  RETURN_IF_ERROR(out->Append(text));
  for (const auto* tensor : tensors) {
    ExactSink sink(out.get(), tensor->bytes);
    Status filled = fill(*tensor, sink);
    if (filled.ok()) filled = sink.Finish();
    RETURN_IF_ERROR(filled.WithContext(path + ": tensor '" + Printable(tensor->name) + "'"));
  }
  return out->Commit();
}

TensorPtrs Pointers(const std::vector<SafetensorsTensor>& tensors) {
  TensorPtrs pointers;
  for (const auto& tensor : tensors) pointers.push_back(&tensor);
  return pointers;
}

}  // namespace

Status SafetensorsWriter::AddTensor(const std::string& name, DType dtype, std::span<const int64_t> dims) {
  const std::string field = "tensor '" + Printable(name) + "'";
  if (name.empty() || name == "__metadata__" || !IsUtf8(name)) {
    return InvalidArgument("{}: a name must be UTF-8, not empty and not __metadata__", field);
  }
  if (IsQuantized(dtype)) return InvalidArgument("{}: safetensors has no type {}", field, DTypeName(dtype));
  if (dims.size() > kMaxSafetensorsDims) {
    return InvalidArgument("{}: {} dimensions, the limit is {}", field, dims.size(), kMaxSafetensorsDims);
  }
  SafetensorsTensor tensor;
  tensor.name = name;
  tensor.dtype = dtype;
  tensor.dims.assign(dims.begin(), dims.end());
  tensor.bytes = GetDTypeInfo(dtype).block_bytes;
  for (const int64_t dim : dims) {
    if (dim < 0 || __builtin_mul_overflow(tensor.bytes, dim, &tensor.bytes)) {
      return InvalidArgument("{}: dimension {} is negative or too large", field, dim);
    }
  }
  if (!names_.insert(name).second) return InvalidArgument("{}: added twice", field);
  tensors_.push_back(std::move(tensor));
  return Status::Ok();
}

Status SafetensorsWriter::WriteFile(const std::string& path, const Fill& fill) const {
  return WriteShard(path, Pointers(tensors_), fill);
}

Status SafetensorsWriter::WriteFolder(const std::string& folder, int64_t max_shard_bytes,
                                      const Fill& fill) const {
  std::vector<TensorPtrs> shards(1);
  int64_t total_bytes = 0;
  int64_t shard_bytes = 0;
  for (const auto* tensor : Pointers(tensors_)) {
    if (!shards.back().empty() && shard_bytes + tensor->bytes > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(tensor);
    shard_bytes += tensor->bytes;
    total_bytes += tensor->bytes;
  }
  const std::string single = folder + "/model.safetensors";
  const std::string index = folder + "/model.safetensors.index.json";
  const std::string& other = shards.size() == 1 ? index : single;
  if (FileExists(other))
    return InvalidArgument("{}: is in the way of the model to be written: remove it first", other);
  if (shards.size() == 1) return WriteFile(single, fill);

  json weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    RETURN_IF_ERROR(WriteShard(folder + "/" + name, shards[i], fill));
    for (const auto* tensor : shards[i]) weight_map[tensor->name] = name;
  }
  const json root = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", std::move(weight_map)}};
  return WriteFileAtomically(index, root.dump(2) + "\n");
}

}  // namespace cachalot
