#include "weights/file_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace cachalot {
namespace {

struct Place {
  int file_idx = 0;
  int64_t offset = 0;
};

class FileSource final : public TensorSource {
 public:
  static Result<std::unique_ptr<TensorSource>> Make(std::string place, std::vector<std::shared_ptr<const File>> files,
                                                    std::vector<SourceTensor> tensors, std::vector<Place> places,
                                                    FileSourceOptions options) {
    auto source = std::make_unique<FileSource>();
    source->place_ = std::move(place);
    source->files_ = std::move(files);
    source->tensors_ = std::move(tensors);
    source->places_ = std::move(places);
    for (size_t i = 0; i < source->tensors_.size(); ++i) source->index_.emplace(source->tensors_[i].name, i);
    if (options.use_mmap) {
      for (const auto& file : source->files_) {
        ASSIGN_OR_RETURN(auto mapping, Mapping::Map(*file));
        source->mappings_.push_back(std::move(mapping));
      }
    }
    return std::unique_ptr<TensorSource>(std::move(source));
  }

  const std::string& place() const override { return place_; }
  std::span<const SourceTensor> tensors() const override { return tensors_; }

  const SourceTensor* Find(std::string_view name) const override {
    const auto it = index_.find(name);
    return it == index_.end() ? nullptr : &tensors_[it->second];
  }

  Result<TensorBytes> Fetch(const SourceTensor& tensor) const override {
    const Place& place = PlaceOf(tensor);
    TensorBytes bytes;
    bytes.size = tensor.num_bytes();
    if (!mappings_.empty()) {
      bytes.data = mappings_[place.file_idx]->bytes().data() + place.offset;
      bytes.mapped = true;
      return bytes;
    }
    ASSIGN_OR_RETURN(bytes.owned, Buffer::Allocate(bytes.size));
    RETURN_IF_ERROR(files_[place.file_idx]
                        ->ReadAt(place.offset, {bytes.owned.data(), static_cast<size_t>(bytes.size)})
                        .WithContext(tensor.name));
    bytes.data = bytes.owned.data();
    return bytes;
  }

  void Release(const SourceTensor& tensor) const override {
    if (mappings_.empty()) return;
    const Place& place = PlaceOf(tensor);
    mappings_[place.file_idx]->Release(place.offset, tensor.num_bytes());
  }

  Status Lock() const override {
    for (const auto& mapping : mappings_) RETURN_IF_ERROR(mapping->Lock().WithContext(place_));
    return Status::Ok();
  }

 private:
  const Place& PlaceOf(const SourceTensor& tensor) const {
    const auto idx = static_cast<size_t>(&tensor - tensors_.data());
    CHECK(idx < places_.size()) << "a tensor of another source: " << tensor.name;
    return places_[idx];
  }

  std::string place_;
  std::vector<std::shared_ptr<const File>> files_;
  std::vector<std::shared_ptr<const Mapping>> mappings_;  // empty: tensors are read
  std::vector<SourceTensor> tensors_;
  std::vector<Place> places_;
  std::unordered_map<std::string_view, size_t> index_;
};

// transformers 5 may keep the experts of a layer in one tensor each for gate and up, and for down:
// PREFIX.experts.gate_up_proj [experts, 2 * rows, cols], PREFIX.experts.down_proj [experts, rows, cols], with
// block scales under _scale_inv. Each expert's matrix is also found under the name that it has elsewhere.
void AddExpertsOf(const SafetensorsTensor& tensor, std::vector<SourceTensor>* tensors, std::vector<Place>* places) {
  constexpr int64_t kMaxExperts = 1 << 14;
  constexpr std::string_view kExperts = ".experts.", kScale = "_scale_inv";
  std::string_view stem = tensor.name;
  const bool scale = stem.ends_with(kScale);
  if (scale) stem.remove_suffix(kScale.size());
  const size_t dot = stem.rfind(kExperts);
  if (dot == std::string_view::npos || tensor.dims.size() != 3 || IsQuantized(tensor.dtype)) return;
  const std::string_view part = stem.substr(dot + kExperts.size());
  const std::string_view both[] = {"gate_proj", "up_proj"}, down[] = {"down_proj"};
  std::span<const std::string_view> parts;
  if (part == "gate_up_proj") parts = both;
  if (part == "down_proj") parts = down;
  const auto num_parts = static_cast<int64_t>(parts.size());
  if (num_parts == 0 || tensor.dims[0] > kMaxExperts || tensor.bytes == 0 || tensor.dims[1] % num_parts != 0) return;
  const int64_t rows = tensor.dims[1] / num_parts, bytes = tensor.bytes / (tensor.dims[0] * num_parts);
  for (int64_t i = 0; i < tensor.dims[0] * num_parts; ++i) {
    SourceTensor expert;
    expert.dtype = tensor.dtype;
    expert.num_dims = 2;
    expert.name = fmt::format("{}{}.{}.weight{}", stem.substr(0, dot + kExperts.size()), i / num_parts,
                              parts[static_cast<size_t>(i % num_parts)], scale ? kScale : "");
    expert.dims[0] = rows;
    expert.dims[1] = tensor.dims[2];
    tensors->push_back(std::move(expert));
    places->push_back({tensor.file_idx, tensor.offset + i * bytes});
  }
}

}  // namespace

Result<std::unique_ptr<TensorSource>> MakeGgufSource(std::shared_ptr<const GgufFile> file, FileSourceOptions options) {
  std::vector<SourceTensor> tensors;
  std::vector<Place> places;
  for (const auto& tensor : file->tensors()) {
    SourceTensor out{.name = tensor.name, .dtype = tensor.dtype, .num_dims = tensor.num_dims};
    std::copy_n(tensor.dims.begin(), tensor.num_dims, out.dims);
    tensors.push_back(std::move(out));
    places.push_back({tensor.file_idx, tensor.offset});
  }
  return FileSource::Make(file->path(), file->files(), std::move(tensors), std::move(places), options);
}

Result<std::unique_ptr<TensorSource>> MakeSafetensorsSource(std::shared_ptr<const SafetensorsFolder> folder,
                                                            FileSourceOptions options) {
  std::vector<SourceTensor> tensors;
  std::vector<Place> places;
  for (const auto& tensor : folder->tensors()) {
    if (tensor.dims.size() > kMaxDims) continue;  // no weight of ours has so many; asking for it is "missing tensor"
    SourceTensor out{.name = tensor.name, .dtype = tensor.dtype, .num_dims = static_cast<int>(tensor.dims.size())};
    std::copy(tensor.dims.begin(), tensor.dims.end(), out.dims);
    tensors.push_back(std::move(out));
    places.push_back({tensor.file_idx, tensor.offset});
    AddExpertsOf(tensor, &tensors, &places);
  }
  return FileSource::Make(folder->path(), folder->files(), std::move(tensors), std::move(places), options);
}

}  // namespace cachalot
