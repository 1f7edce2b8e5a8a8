#include "formats/hf_config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "formats/json.h"
#include "formats/text.h"

namespace cachalot {
namespace {

using nlohmann::json;

constexpr JsonLimits kConfigLimits = {.max_depth = 32, .max_bytes = 8 << 20, .max_values = 200'000};

bool IsPresent(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && !it->is_null();
}

// Present means: not null.
void SetIfAbsent(json& object, const char* key, const json& value) {
  if (!IsPresent(object, key)) object[key] = value;
}

// A set of RoPE parameters, in either spelling, to the classic fields: rope_theta and rope_scaling (null when
// plain).
void PresentRope(json& config, json rope) {
  for (const char* key : {"rope_theta", "partial_rotary_factor"}) {
    if (IsPresent(rope, key)) config[key] = rope[key];
    rope.erase(key);
  }
  if (IsPresent(rope, "type")) SetIfAbsent(rope, "rope_type", rope["type"]);
  const bool plain = rope.empty() || (IsPresent(rope, "rope_type") && rope["rope_type"] == "default");
  config["rope_scaling"] = plain ? json(nullptr) : std::move(rope);
}

// False when the value is no integer that int64_t holds.
bool ToInt(const json& value, int64_t* out) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return false;
    *out = static_cast<int64_t>(number);
    return true;
  }
  if (value.is_number_integer()) {
    *out = value.get<int64_t>();
    return true;
  }
  if (!value.is_number_float()) return false;
  const double number = value.get<double>();
  if (!(std::abs(number) <= 0x1p53) || number != std::trunc(number)) return false;
  *out = static_cast<int64_t>(number);
  return true;
}

}  // namespace

HfConfig::HfConfig(std::string place, std::shared_ptr<const json> root)
    : place_(std::move(place)), root_(std::move(root)) {}

Result<HfConfig> HfConfig::Load(const std::string& folder) {
  const std::string path = folder + "/config.json";
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kConfigLimits.max_bytes));
  return Parse(text, path);
}

Result<HfConfig> HfConfig::Parse(std::string_view text, std::string place) {
  ASSIGN_OR_RETURN(json root, ParseJson(text, place, kConfigLimits));
  if (!root.is_object()) return Corrupt("{}: holds {}, not an object", place, root.type_name());

  bool per_layer_type = false;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {  // the later one wins, as in transformers
    if (!IsPresent(root, key)) continue;
    const json rope = root[key];
    if (!rope.is_object()) {
      return InvalidArgument("{}: {} = {}: must be an object", place, key, JsonPreview(rope));
    }
    for (const auto& member : rope) per_layer_type |= member.is_object();
    if (!per_layer_type) PresentRope(root, rope);
  }
  if (IsPresent(root, "dtype")) SetIfAbsent(root, "torch_dtype", root["dtype"]);

  HfConfig config(std::move(place), std::make_shared<const json>(std::move(root)));
  config.rope_per_layer_type_ = per_layer_type;
  if (config.Has("architectures")) {
    ASSIGN_OR_RETURN(config.architectures_, config.StringList("architectures"));
  }
  return config;
}

const json* HfConfig::Find(std::string_view key) const {
  const auto it = root_->find(key);
  return it == root_->end() || it->is_null() ? nullptr : &*it;
}

Status HfConfig::Refusal(std::string_view key) const {
  if (rope_per_layer_type_ &&
      (key == "rope_theta" || key == "rope_scaling" || key == "partial_rotary_factor")) {
    return Unsupported(
        "{}: {} is given per layer type in rope_parameters, which is not supported for this model", place_,
        key);
  }
  return Status::Ok();
}

Result<const json*> HfConfig::Require(std::string_view key, std::string_view wanted) const {
  RETURN_IF_ERROR(Refusal(key));
  const json* value = Find(key);
  if (value == nullptr)
    return NotFound("{}: {} is missing, it must be {}", place_, Printable(key, 200), wanted);
  return value;
}

Status HfConfig::Wrong(std::string_view key, const json& value, std::string_view wanted) const {
  return InvalidArgument("{}: {} = {}: must be {}", place_, Printable(key, 200), JsonPreview(value), wanted);
}

bool HfConfig::Has(std::string_view key) const {
  return Find(key) != nullptr;
}

Result<int64_t> HfConfig::Int(std::string_view key, int64_t min, int64_t max) const {
  ASSIGN_OR_RETURN(const json* value, Require(key, IntRange(min, max)));
  int64_t number = 0;
  if (!ToInt(*value, &number) || number < min || number > max) return Wrong(key, *value, IntRange(min, max));
  return number;
}

Result<int64_t> HfConfig::IntOr(std::string_view key, int64_t default_value, int64_t min, int64_t max) const {
  RETURN_IF_ERROR(Refusal(key));
  return Has(key) ? Int(key, min, max) : default_value;
}

Result<double> HfConfig::Float(std::string_view key, double min, double max) const {
  ASSIGN_OR_RETURN(const json* value, Require(key, FloatRange(min, max)));
  if (!value->is_number()) return Wrong(key, *value, FloatRange(min, max));
  const double number = value->get<double>();
  if (!(number >= min && number <= max)) return Wrong(key, *value, FloatRange(min, max));
  return number;
}

Result<double> HfConfig::FloatOr(std::string_view key, double default_value, double min, double max) const {
  RETURN_IF_ERROR(Refusal(key));
  return Has(key) ? Float(key, min, max) : default_value;
}

Result<bool> HfConfig::Bool(std::string_view key) const {
  ASSIGN_OR_RETURN(const json* value, Require(key, "true or false"));
  if (!value->is_boolean()) return Wrong(key, *value, "true or false");
  return value->get<bool>();
}

Result<bool> HfConfig::BoolOr(std::string_view key, bool default_value) const {
  return Has(key) ? Bool(key) : default_value;
}

Result<std::string> HfConfig::String(std::string_view key) const {
  ASSIGN_OR_RETURN(const json* value, Require(key, "a string"));
  if (!value->is_string()) return Wrong(key, *value, "a string");
  return value->get<std::string>();
}

Result<std::string> HfConfig::StringOr(std::string_view key, std::string_view default_value) const {
  return Has(key) ? String(key) : std::string(default_value);
}

Result<std::vector<int64_t>> HfConfig::IntList(std::string_view key, int64_t min, int64_t max) const {
  ASSIGN_OR_RETURN(const json* value, Require(key, "a list, each " + IntRange(min, max)));
  const bool is_list = value->is_array();
  std::vector<int64_t> out;
  for (size_t i = 0; i < (is_list ? value->size() : 1); ++i) {
    const json& element = is_list ? (*value)[i] : *value;
    int64_t number = 0;
    if (!ToInt(element, &number) || number < min || number > max) {
      return Wrong(is_list ? fmt::format("{}[{}]", key, i) : std::string(key), element, IntRange(min, max));
    }
    out.push_back(number);
  }
  return out;
}

Result<std::vector<std::string>> HfConfig::StringList(std::string_view key) const {
  ASSIGN_OR_RETURN(const json* value, Require(key, "a list of strings"));
  const bool is_list = value->is_array();
  std::vector<std::string> out;
  for (size_t i = 0; i < (is_list ? value->size() : 1); ++i) {
    const json& element = is_list ? (*value)[i] : *value;
    if (!element.is_string()) {
      return Wrong(is_list ? fmt::format("{}[{}]", key, i) : std::string(key), element, "a string");
    }
    out.push_back(element.get<std::string>());
  }
  return out;
}

Result<HfConfig> HfConfig::Object(std::string_view key) const {
  ASSIGN_OR_RETURN(const json* value, Require(key, "an object"));
  if (!value->is_object()) return Wrong(key, *value, "an object");
  return HfConfig(fmt::format("{}: {}", place_, Printable(key, 200)),
                  std::shared_ptr<const json>(root_, value));
}

}  // namespace cachalot
