#include "weights/dummy/dummy_source.h"

#include <unordered_map>

#include "quant/format.h"
#include "weights/dummy/dummy_values.h"
#include "weights/dummy/dummy_vocab.h"

namespace cachalot {
namespace {

constexpr int32_t kMaxLayers = 1000;

class DummySource final : public TensorSource {
 public:
  DummySource(std::string place, std::vector<DummyTensor> tensors)
      : place_(std::move(place)), tensors_(std::move(tensors)) {
    infos_.reserve(tensors_.size());
    for (const auto& tensor : tensors_) infos_.push_back(tensor.info);
    for (size_t i = 0; i < infos_.size(); ++i) index_.emplace(infos_[i].name, i);
  }

  const std::string& place() const override { return place_; }
  std::span<const SourceTensor> tensors() const override { return infos_; }
  const SourceTensor* Find(std::string_view name) const override {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &infos_[found->second];
  }

  Result<TensorBytes> Fetch(const SourceTensor& tensor) const override {
    const auto found = index_.find(tensor.name);
    CHECK(found != index_.end()) << tensor.name;
    TensorBytes bytes;
    bytes.size = tensor.num_bytes();
    ASSIGN_OR_RETURN(bytes.owned, Buffer::Allocate(bytes.size));
    FillDummyTensor(tensors_[found->second], {bytes.owned.data(), static_cast<size_t>(bytes.size)});
    bytes.data = bytes.owned.data();
    return bytes;
  }

  void Release(const SourceTensor&) const override {}

 private:
  std::string place_;
  std::vector<DummyTensor> tensors_;
  std::vector<SourceTensor> infos_;
  std::unordered_map<std::string_view, size_t> index_;  // views into infos_, which never changes again
};

}  // namespace

Result<DummyModel> ResolveDummy(std::string_view spec_name, int32_t layers, std::string_view type) {
  DummyModel model;
  ASSIGN_OR_RETURN(model.spec, FindDummySpec(spec_name));
  if (layers < 0 || layers > kMaxLayers) {
    return InvalidArgument("dummy {}: {} layers, must be 0 (the model's own {}) or 1..{}", spec_name, layers,
                           model.spec.layers, kMaxLayers);
  }
  if (layers > 0) model.spec.layers = layers;
  model.type = model.spec.type;
  if (!type.empty()) {
    ASSIGN_OR_RETURN(model.type, ParseDType(type == "fp8" ? "F8_E4M3" : type));
  }
  const QuantFormat* format = FindQuantFormat(model.type);
  if (format == nullptr || format->encode == nullptr) {
    std::string types;
    for (const auto& each : AllQuantFormats()) {
      if (each.encode == nullptr) continue;
      types += types.empty() ? "" : ", ";
      types += DTypeName(each.dtype);
    }
    return Unsupported("dummy {}: values of type {} cannot be made; possible are {}", spec_name,
                       DTypeName(model.type), types);
  }
  return model;
}

Result<DummyWeights> MakeDummySource(std::string_view spec_name, int32_t layers, std::string_view type) {
  ASSIGN_OR_RETURN(const DummyModel model, ResolveDummy(spec_name, layers, type));
  const VocabIds ids = DummyVocabIds(model.spec);
  DummyWeights weights;
  weights.config_json = DummyConfigJson(model.spec, model.type, ids.bos, ids.eos);
  weights.source = std::make_unique<DummySource>(fmt::format("dummy {}", spec_name),
                                                 ListDummyTensors(model.spec, model.type));
  return weights;
}

}  // namespace cachalot
