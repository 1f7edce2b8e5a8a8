// HfConfig: the config.json of a Hugging Face folder, read field by field with a type and a range.
// Every error names the file, the field, its value and what is allowed. A null field counts as absent.
//
// The transformers-5 spelling is presented as the classic one: rope_parameters {rope_theta, rope_type, …} as
// rope_theta and rope_scaling (absent for rope_type "default"), dtype as torch_dtype; rope_scaling's "type"
// also as "rope_type".
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace cachalot {

class HfConfig {
 public:
  // <folder>/config.json
  static Result<HfConfig> Load(const std::string& folder);
  static Result<HfConfig> Parse(std::string_view text, std::string place);

  bool Has(std::string_view key) const;

  // Both bounds are inclusive. A number written as 4096.0 is an integer too.
  Result<int64_t> Int(std::string_view key, int64_t min, int64_t max) const;
  Result<int64_t> IntOr(std::string_view key, int64_t default_value, int64_t min, int64_t max) const;
  Result<double> Float(std::string_view key, double min = kLowest, double max = kHighest) const;
  Result<double> FloatOr(std::string_view key, double default_value, double min = kLowest,
                         double max = kHighest) const;
  Result<bool> Bool(std::string_view key) const;
  Result<bool> BoolOr(std::string_view key, bool default_value) const;
  Result<std::string> String(std::string_view key) const;
  Result<std::string> StringOr(std::string_view key, std::string_view default_value) const;

  // A single integer (string) counts as a list of one: eos_token_id is written both ways.
  Result<std::vector<int64_t>> IntList(std::string_view key, int64_t min = INT64_MIN,
                                       int64_t max = INT64_MAX) const;
  Result<std::vector<std::string>> StringList(std::string_view key) const;

  // A sub-object as a config of its own: "config.json: rope_scaling: factor = …".
  Result<HfConfig> Object(std::string_view key) const;

  // Empty when the file names none.
  const std::vector<std::string>& architectures() const { return architectures_; }

  // True when rope_parameters holds one set per layer type: rope_theta and rope_scaling are then
  // kUnsupported, and whoever knows such a model reads Object("rope_parameters").
  bool has_rope_per_layer_type() const { return rope_per_layer_type_; }

  // With the normalisations above; never null.
  const nlohmann::json& root() const { return *root_; }
  const std::string& place() const { return place_; }

 private:
  static constexpr double kLowest = std::numeric_limits<double>::lowest();
  static constexpr double kHighest = std::numeric_limits<double>::max();

  HfConfig(std::string place, std::shared_ptr<const nlohmann::json> root);

  const nlohmann::json* Find(std::string_view key) const;  // nullptr when absent or null
  Status Refusal(std::string_view key) const;              // not ok when the key must not be asked for
  Result<const nlohmann::json*> Require(std::string_view key, std::string_view wanted) const;
  Status Wrong(std::string_view key, const nlohmann::json& value, std::string_view wanted) const;

  std::string place_;
  std::shared_ptr<const nlohmann::json> root_;  // an object
  std::vector<std::string> architectures_;
  bool rope_per_layer_type_ = false;
};

}  // namespace cachalot
