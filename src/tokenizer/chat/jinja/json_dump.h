// Python's json.dumps and json.loads, and the way from the request's JSON to values.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_strings.h"

namespace cachalot::jinja {

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // the text of one level; none: all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
  bool from_user = false;  // the indent or a separator is the request's
};

// The text is the request's as a whole if any part of the value or of the style is.
Result<const String*> DumpJson(Runtime& rt, const Value& value, const JsonStyle& style);
// Strings are borrowed from `json`, which must outlive the render.
Result<Value> FromJson(Runtime& rt, const nlohmann::ordered_json& json, bool user, int depth = 0);
// json.loads: the values are the request's if any part of the text is.
Result<Value> ParseJson(Runtime& rt, const String* text);

}  // namespace cachalot::jinja
