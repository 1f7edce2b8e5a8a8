#include "engine/kv_types.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "formats/safetensors.h"

namespace cachalot {
namespace {

bool IsPlain(const std::string& type) { return type == "f32" || type == "f16" || type == "bf16"; }

Result<int32_t> Layer(std::string_view text, const std::string& all) {
  int32_t layer = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layer);
  if (error != std::errc() || end != text.data() + text.size()) {
    return InvalidArgument("--kv-layers {}: '{}' is no layer; it wants LAYER=TYPE or FIRST-LAST=TYPE, separated by commas", all, text);
  }
  return layer;
}

struct LayerRange {
  int32_t first, last;
  std::string type;
};

Result<std::vector<LayerRange>> ParseLayers(const std::string& text, int32_t num_layers) {
  std::vector<LayerRange> ranges;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, comma - at);
    at = comma + 1;
    const size_t equals = part.find('=');
    const std::string where = part.substr(0, equals);
    const size_t dash = where.find('-');
    LayerRange range;
    ASSIGN_OR_RETURN(range.first, Layer(std::string_view(where).substr(0, dash), text));
    range.last = range.first;
    if (dash != std::string::npos) {
      ASSIGN_OR_RETURN(range.last, Layer(std::string_view(where).substr(dash + 1), text));
    }
    if (equals == std::string::npos) return InvalidArgument("--kv-layers {}: '{}' names no type", text, part);
    range.type = part.substr(equals + 1);
    if (!IsPlain(range.type) && FindKvFormat(range.type) == nullptr) {
      return InvalidArgument("--kv-layers {}: '{}' is no KV type", text, range.type);
    }
    if (range.first < 0 || range.first > range.last || range.last >= num_layers) {
      return InvalidArgument("--kv-layers {}: '{}': the model has layers 0 to {}", text, where, num_layers - 1);
    }
    ranges.push_back(std::move(range));
  }
  return ranges;
}

Result<KvScheme> SchemeOf(const std::string& type, const KvOptions& options) {
  KvScheme scheme;
  if (IsPlain(type)) return scheme;
  scheme = FindKvFormat(type)->scheme;
  if (options.rotate != "auto") scheme.rotate = options.rotate == "on";
  if (options.group == "auto") return scheme;
  int32_t group = 0;
  if (options.group != "head") {
    for (const int32_t known : {32, 64, 128}) {
      if (options.group == std::to_string(known)) group = known;
    }
    if (group == 0) return InvalidArgument("--kv-group {}: must be auto, head, 32, 64 or 128", options.group);
  }
  scheme.key_group = scheme.latent_group = group;
  return scheme;
}

// Both: the same type of all plain layers.
Status SetPlain(const std::string& type, std::optional<DType>* plain) {
  ASSIGN_OR_RETURN(const DType dtype, ParseDType(type));
  if (*plain && **plain != dtype) {
    return Unsupported("KV types {} and {} in one model: layers that are not quantised have one type", DTypeName(**plain), DTypeName(dtype));
  }
  *plain = dtype;
  return Status::Ok();
}

Result<std::vector<float>> ReadMean(const SafetensorsFolder& file, const std::string& path, int32_t layer, int64_t heads,
                                    int64_t dim) {
  const std::string name = KeyMeanName(layer);
  const SafetensorsTensor* tensor = file.Find(name);
  if (tensor == nullptr) return InvalidArgument("{}: there is no tensor {}: it was made for another model", path, name);
  if (tensor->dtype != DType::kF32 || tensor->dims != std::vector<int64_t>{heads, dim}) {
    return InvalidArgument("{}: {} is {} of {}; this model wants F32 of [{}, {}]", path, name, DTypeName(tensor->dtype),
                           fmt::join(tensor->dims, " x "), heads, dim);
  }
  std::vector<float> mean(static_cast<size_t>(heads * dim));
  RETURN_IF_ERROR(file.files()[static_cast<size_t>(tensor->file_idx)]->ReadAt(tensor->offset, std::as_writable_bytes(std::span(mean))));
  for (const float value : mean) {
    if (!std::isfinite(value)) return InvalidArgument("{}: {} holds a value that is no finite number", path, name);
  }
  return mean;
}

}  // namespace

std::string KeyMeanName(int32_t layer) { return fmt::format("layers.{}.key_mean", layer); }

std::string KvChoice::Name() const {
  std::string name = DTypeName(plain);
  if (!types.any_quantised()) return name;
  name += fmt::format("+{}", types.Name());
  if (key_means.empty()) return name;
  XXH64_hash_t hash = 0;
  for (const auto& mean : key_means) hash = XXH3_64bits_withSeed(mean.data(), mean.size() * sizeof(float), hash);
  return name + fmt::format("-means{:016x}", hash);
}

Result<KvChoice> ChooseKv(const KvOptions& options, const ModelSpec& spec) {
  KvChoice choice;
  std::optional<DType> plain;
  const std::string type = options.type == "auto" ? "f16" : options.type;
  if (!IsPlain(type) && FindKvFormat(type) == nullptr) {
    return Unsupported("KV type '{}' is none of {}", options.type, fmt::join(KvTypeNames(), ", "));
  }
  if (options.rotate != "auto" && options.rotate != "on" && options.rotate != "off") {
    return InvalidArgument("--kv-rotate {}: must be auto, on or off", options.rotate);
  }
  if (IsPlain(type)) RETURN_IF_ERROR(SetPlain(type, &plain));
  ASSIGN_OR_RETURN(choice.types.scheme, SchemeOf(type, options));
  ASSIGN_OR_RETURN(const auto ranges, ParseLayers(options.layers, spec.num_layers));
  for (const LayerRange& range : ranges) {
    if (IsPlain(range.type)) RETURN_IF_ERROR(SetPlain(range.type, &plain));
    ASSIGN_OR_RETURN(const KvScheme scheme, SchemeOf(range.type, options));
    for (int32_t layer = range.first; layer <= range.last; ++layer) choice.types.layers.emplace_back(layer, scheme);
  }
  if (plain) choice.plain = *plain;
  RETURN_IF_ERROR(CheckKvTypes(choice.types, spec));
  if (options.calibration.empty()) return choice;
  if (!choice.types.any_quantised()) return InvalidArgument("--kv-calibration says nothing: no layer's KV cache is quantised");
  ASSIGN_OR_RETURN(const auto file, SafetensorsFolder::OpenFile(options.calibration));
  const KvGroupSpec group = KvGroups(spec, /*with_mtp=*/false)[0];
  const KvVectors vectors = group.vectors();
  for (int32_t layer = 0; layer < spec.num_layers; ++layer) {
    ASSIGN_OR_RETURN(auto mean, ReadMean(*file, options.calibration, layer, group.num_kv_heads, vectors.k_dim - vectors.exact_dim));
    choice.key_means.push_back(std::move(mean));
  }
  return choice;
}

std::vector<std::string> KvTypeNames() {
  std::vector<std::string> names = {"auto", "f32", "f16", "bf16"};
  for (const KvFormat& format : KvFormats()) names.emplace_back(format.name);
  return names;
}

Result<std::string> KvTypeOfPair(const std::string& k, const std::string& v) {
  struct Pair {
    const char *k, *v, *type;
  };
  static constexpr Pair kPairs[] = {{"f32", "f32", "f32"},    {"f16", "f16", "f16"},    {"bf16", "bf16", "bf16"}, {"q8_0", "q8_0", "k8v8"},
                                    {"q6_0", "q8_0", "k6v8"}, {"q6_0", "q4_0", "k6v4"}, {"q4_0", "q4_0", "k4v4"}};
  std::string known;
  for (const Pair& pair : kPairs) {
    if (k == pair.k && v == pair.v) return std::string(pair.type);
    known += fmt::format("{}{}/{}", known.empty() ? "" : ", ", pair.k, pair.v);
  }
  return InvalidArgument("-ctk {} -ctv {}: this pair has no counterpart here; these have: {} (or --kv-type)", k, v, known);
}

}  // namespace cachalot
