// Bounded JSON: what comes from a file or a request is parsed under limits of size, depth and number of
// values, and everything that is wrong with it is a Status, never an exception. Strings are valid UTF-8.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace cachalot {

struct JsonLimits {
  int max_depth = 64;                      // nested arrays and objects
  int64_t max_bytes = int64_t{128} << 20;  // of text
  int64_t max_values = 4'000'000;          // a value costs up to 150 bytes of memory for 3 bytes of text
  bool unique_keys = false;                // a key given twice is an error; otherwise the last one counts
};

// `place` (usually the path) starts every error message.
Result<nlohmann::json> ParseJson(std::string_view text, std::string_view place, JsonLimits limits = {});
Result<nlohmann::json> ParseJsonFile(const std::string& path, JsonLimits limits = {});

// The value as JSON on one line for an error message, cut at max_chars.
std::string JsonPreview(const nlohmann::json& value, size_t max_chars = 60);

}  // namespace cachalot
