#include "engine/kv_types.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "engine/kv_budget.h"
#include "formats/safetensors.h"
#include "model/kv_calibration.h"

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

Result<std::vector<float>> ReadFloats(const SafetensorsFolder& file, const std::string& path, const std::string& name,
                                      const std::vector<int64_t>& dims) {
  const SafetensorsTensor* tensor = file.Find(name);
  if (tensor == nullptr) return InvalidArgument("{}: there is no tensor {}: it was made for another model, or by an older program", path, name);
  if (tensor->dtype != DType::kF32 || tensor->dims != dims) {
    return InvalidArgument("{}: {} is {} of {}; this model wants F32 of {}", path, name, DTypeName(tensor->dtype),
                           fmt::join(tensor->dims, " x "), fmt::join(dims, " x "));
  }
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  std::vector<float> values(static_cast<size_t>(count));
  RETURN_IF_ERROR(file.files()[static_cast<size_t>(tensor->file_idx)]->ReadAt(tensor->offset, std::as_writable_bytes(std::span(values))));
  for (const float value : values) {
    if (!std::isfinite(value)) return InvalidArgument("{}: {} holds a value that is no finite number", path, name);
  }
  return values;
}

double BitsOf(const KvScheme& scheme, const KvGroupSpec& group) {
  if (!scheme.quantised()) return 16;
  const KvVectors vectors = group.vectors();
  const int32_t values = vectors.k_dim + (vectors.value_in_key ? 0 : vectors.v_dim);
  return 8.0 * PlanKvPlanes(scheme, vectors, 16).token_bytes() / values;
}

// "0-3=k8v8,4=k6v8"
std::string MixText(const std::vector<std::string>& types) {
  std::string text;
  for (size_t first = 0; first < types.size();) {
    size_t end = first;
    while (end < types.size() && types[end] == types[first]) ++end;
    if (!types[first].empty()) {
      const std::string range = end - first == 1 ? fmt::format("{}", first) : fmt::format("{}-{}", first, end - 1);
      text += fmt::format("{}{}={}", text.empty() ? "" : ",", range, types[first]);
    }
    first = end;
  }
  return text;
}

// Types of the layers that see everything, by --kv-budget.
Status ApplyBudget(const KvOptions& options, const ModelSpec& spec, const SafetensorsFolder& file, KvChoice* choice) {
  if (!(options.budget > 0 && options.budget <= 16)) return InvalidArgument("--kv-budget {}: must be above 0, at most 16 bits", options.budget);
  std::vector<int32_t> layers;
  for (int32_t i = 0; i < spec.num_layers; ++i) {
    if (spec.layers[static_cast<size_t>(i)].window == 0) layers.push_back(i);
  }
  const KvGroupSpec group = KvGroups(spec, /*with_mtp=*/false)[0];
  const int64_t num_layers = spec.num_layers;
  std::vector<KvBudgetType> types = {{"f16", 16, std::vector<float>(layers.size(), 0.0f)}};
  std::vector<KvScheme> schemes = {{}};
  for (const KvFormat& format : KvFormats()) {
    ASSIGN_OR_RETURN(const auto errors, ReadFloats(file, options.calibration, KvErrorName(format.name), {num_layers}));
    KvBudgetType& type = types.emplace_back(KvBudgetType{format.name, BitsOf(format.scheme, group), {}});
    for (const int32_t layer : layers) type.errors.push_back(errors[static_cast<size_t>(layer)]);
    schemes.push_back(format.scheme);
  }
  ASSIGN_OR_RETURN(const auto mix, ChooseKvMix(types, layers.size(), options.budget));
  std::vector<std::string> names(static_cast<size_t>(spec.num_layers));
  for (size_t i = 0; i < layers.size(); ++i) {
    choice->types.layers.emplace_back(layers[i], schemes[mix[i]]);
    names[static_cast<size_t>(layers[i])] = types[mix[i]].name;
  }
  choice->mix = MixText(names);
  return Status::Ok();
}

}  // namespace

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
  if (options.budget != 0 && (options.type != "auto" || options.group != "auto" || options.rotate != "auto" || options.calibration.empty())) {
    return InvalidArgument("--kv-budget picks the types by what --kv-calibration FILE says of them: it goes with that, and without "
                           "--kv-type, --kv-group and --kv-rotate");
  }
  if (IsPlain(type)) RETURN_IF_ERROR(SetPlain(type, &plain));
  std::shared_ptr<const SafetensorsFolder> file;
  if (options.budget != 0) {
    ASSIGN_OR_RETURN(file, SafetensorsFolder::OpenFile(options.calibration));
  }
  ASSIGN_OR_RETURN(choice.types.scheme, SchemeOf(type, options));
  if (options.budget != 0) RETURN_IF_ERROR(ApplyBudget(options, spec, *file, &choice));
  ASSIGN_OR_RETURN(const auto ranges, ParseLayers(options.layers, spec.num_layers));
  for (const LayerRange& range : ranges) {
    if (IsPlain(range.type)) RETURN_IF_ERROR(SetPlain(range.type, &plain));
    ASSIGN_OR_RETURN(const KvScheme scheme, SchemeOf(range.type, options));
    for (int32_t layer = range.first; layer <= range.last; ++layer) choice.types.layers.emplace_back(layer, scheme);
  }
  if (plain) choice.plain = *plain;
  RETURN_IF_ERROR(CheckKvTypes(choice.types, spec));
  if (options.calibration.empty() || (options.budget != 0 && !choice.types.any_quantised())) return choice;
  if (!choice.types.any_quantised()) return InvalidArgument("--kv-calibration says nothing: no layer's KV cache is quantised");
  if (file == nullptr) {
    ASSIGN_OR_RETURN(file, SafetensorsFolder::OpenFile(options.calibration));
  }
  const KvGroupSpec group = KvGroups(spec, /*with_mtp=*/false)[0];
  const KvVectors vectors = group.vectors();
  for (int32_t layer = 0; layer < spec.num_layers; ++layer) {
    ASSIGN_OR_RETURN(auto mean, ReadFloats(*file, options.calibration, KeyMeanName(layer), {group.num_kv_heads, vectors.k_dim - vectors.exact_dim}));
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
