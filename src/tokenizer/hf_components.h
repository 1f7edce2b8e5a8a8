// The parts that tokenizer.json declares, each read into what this module has for it.
// Invariant: a kind, pattern or setting that would change the result and is not supported is a kUnsupported
// error naming it; nothing is guessed.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer_impl.h"

namespace cachalot {

// Members of a JSON object with their types checked; a missing or null member gives the default.
Result<bool> JsonBool(const nlohmann::json& object, const char* key, bool default_value);
Result<std::string> JsonString(const nlohmann::json& object, const char* key, std::string_view default_value);
// kNotFound if missing: every component needs its type.
Result<std::string> JsonType(const nlohmann::json& object, std::string_view what);
// Null when missing or null.
const nlohmann::json* JsonMember(const nlohmann::json& object, const char* key);

Status ReadNormalizer(const nlohmann::json& json, Normalizer* normalizer);

// *byte_level: its text is then written in the byte alphabet.
Status ReadPreTokenizer(const nlohmann::json& json, PreTokenizer* pre_tokenizer, bool* byte_level);

// Everything of *style but byte_level, which is given.
Status ReadDecoder(const nlohmann::json& json, TokenStyle* style);

// What the post-processor puts around a text.
Status ReadPostProcessor(const nlohmann::json& json, std::vector<int32_t>* prefix_ids,
                         std::vector<int32_t>* suffix_ids);

}  // namespace cachalot
