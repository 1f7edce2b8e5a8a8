#include "tasks/model_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "formats/gguf.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "weights/dummy/dummy_source.h"

namespace cachalot {
namespace {

constexpr size_t kMaxValueChars = 100;

int64_t NumValues(const std::vector<int64_t>& dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

void AddJsonFields(const nlohmann::json& object, ModelFiles* files) {
  for (const auto& [key, value] : object.items()) {
    files->metadata.push_back({key, value.type_name(), JsonPreview(value, kMaxValueChars)});
  }
}

void CountTypes(ModelFiles* files) {
  for (const auto& tensor : files->tensors) {
    auto found = std::find_if(files->types.begin(), files->types.end(),
                              [&](const TypeTotal& total) { return total.dtype == tensor.dtype; });
    if (found == files->types.end()) {
      found = files->types.insert(files->types.end(), TypeTotal{.dtype = tensor.dtype});
    }
    ++found->tensors;
    found->values += NumValues(tensor.dims);
    found->bytes += tensor.bytes;
  }
  std::stable_sort(files->types.begin(), files->types.end(),
                   [](const TypeTotal& a, const TypeTotal& b) { return a.bytes > b.bytes; });
}

Result<ModelFiles> ListGguf(const std::string& path) {
  ASSIGN_OR_RETURN(const auto gguf, GgufFile::Open(path));
  ModelFiles files;
  files.format = fmt::format("GGUF v{}", gguf->version());
  files.num_files = static_cast<int64_t>(gguf->files().size());
  files.file_bytes = gguf->total_bytes();
  for (const auto& tensor : gguf->tensors()) {
    files.tensors.push_back({tensor.name,
                             tensor.dtype,
                             {tensor.dims.begin(), tensor.dims.begin() + tensor.num_dims},
                             tensor.bytes});
  }
  for (const auto& entry : gguf->entries()) {
    files.metadata.push_back({entry.key, entry.value.TypeName(), entry.value.Text(kMaxValueChars)});
  }
  return files;
}

Result<ModelFiles> ListFolder(const std::string& path) {
  ASSIGN_OR_RETURN(const auto folder, SafetensorsFolder::Open(path));
  ASSIGN_OR_RETURN(const nlohmann::json config, ParseJsonFile(path + "/config.json"));
  ModelFiles files;
  files.format = "safetensors";
  files.num_files = static_cast<int64_t>(folder->files().size());
  files.file_bytes = folder->total_bytes();
  for (const auto& tensor : folder->tensors()) {
    files.tensors.push_back({tensor.name, tensor.dtype, tensor.dims, tensor.bytes});
  }
  AddJsonFields(config, &files);
  return files;
}

}  // namespace

int64_t ModelFiles::num_values() const {
  int64_t count = 0;
  for (const auto& type : types) count += type.values;
  return count;
}

int64_t ModelFiles::tensor_bytes() const {
  int64_t bytes = 0;
  for (const auto& type : types) bytes += type.bytes;
  return bytes;
}

Result<ModelFiles> ListModelFiles(const std::string& path) {
  auto files = IsDirectory(path) ? ListFolder(path) : ListGguf(path);
  if (files.ok()) CountTypes(&*files);
  return files;
}

Result<ModelFiles> ListDummyFiles(const std::string& spec, int32_t layers, const std::string& type) {
  ASSIGN_OR_RETURN(const DummyWeights weights, MakeDummySource(spec, layers, type));
  ModelFiles files;
  files.format = "generated";
  for (const auto& tensor : weights.source->tensors()) {
    files.tensors.push_back(
        {tensor.name, tensor.dtype, {tensor.dims, tensor.dims + tensor.num_dims}, tensor.num_bytes()});
  }
  ASSIGN_OR_RETURN(const nlohmann::json config, ParseJson(weights.config_json, "dummy " + spec));
  AddJsonFields(config, &files);
  CountTypes(&files);
  return files;
}

}  // namespace cachalot
