#include "server/api/field_reader.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/text.h"
#include "tokenizer/utf8.h"

namespace cachalot {

std::optional<ApiError> ParseBody(std::string_view body, ChatJson* object) {
  if (body.empty()) return ErrorOfStatus(400, "the body is empty: it must be a JSON object");
  if (!IsValidUtf8(body)) return ErrorOfStatus(400, "the body is not valid UTF-8");
  Result<ChatJson> parsed = ParseChatJson(body);
  if (!parsed.ok()) {
    // "JSON: [json.exception.parse_error.101] parse error at line 1, column 2: …"
    std::string_view what = parsed.status().message();
    if (const size_t end = what.find("] "); end != std::string_view::npos) what.remove_prefix(end + 2);
    return ErrorOfStatus(400, fmt::format("the body is no JSON that can be read: {}", Printable(what, 200)));
  }
  if (!parsed->is_object()) {
    return ErrorOfStatus(400, fmt::format("the body must be a JSON object, not a {}", parsed->type_name()));
  }
  *object = std::move(*parsed);
  return std::nullopt;
}

std::string Preview(const ChatJson& value) {
  if (value.is_object()) return fmt::format("an object of {}", value.size());
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  if (value.is_string()) return '"' + Printable(value.get_ref<const std::string&>(), 60) + '"';
  return value.dump(-1, ' ', false, ChatJson::error_handler_t::replace);
}

FieldReader::FieldReader(const ChatJson& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {}

const ChatJson* FieldReader::Find(std::string_view name) const {
  // A name given twice: the parser has kept the last.
  const auto found = object_.find(std::string(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void FieldReader::Fail(std::string_view param, std::string message, std::string code) {
  if (error_) return;
  ApiError error;
  error.param = prefix_ + std::string(param);
  error.message = std::move(message);
  error.code = std::move(code);
  error_ = std::move(error);
}

void FieldReader::WrongType(std::string_view name, const ChatJson& value, std::string_view wanted) {
  Fail(name, fmt::format("{}{} is {}: must be {}", prefix_, name, Preview(value), wanted), "invalid_type");
}

double FieldReader::Number(std::string_view name, double fallback, double min, double max) {
  const ChatJson* value = Find(name);
  if (value == nullptr) return fallback;
  if (!value->is_number()) {
    WrongType(name, *value, "a number");
    return fallback;
  }
  const double number = value->get<double>();
  if (std::isfinite(number) && number >= min && number <= max) return number;
  Fail(name, fmt::format("{}{} is {}: must be {}", prefix_, name, Preview(*value), FloatRange(min, max)), "out_of_range");
  return fallback;
}

int64_t FieldReader::Int(std::string_view name, int64_t fallback, int64_t min, int64_t max) {
  const ChatJson* value = Find(name);
  if (value == nullptr) return fallback;
  bool whole = value->is_number_integer();
  int64_t number = 0;
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    whole = true;
    number = INT64_MAX;
    if (max == INT64_MAX) return number;
  } else if (whole) {
    number = value->get<int64_t>();
  } else if (value->is_number_float()) {
    const double real = value->get<double>();
    whole = std::abs(real) < 9e15 && real == std::floor(real);  // 16.0, as some languages write it
    if (whole) number = static_cast<int64_t>(real);
  }
  if (!whole) {
    WrongType(name, *value, IntRange(min, max));
    return fallback;
  }
  if (number >= min && number <= max) return number;
  Fail(name, fmt::format("{}{} is {}: must be {}", prefix_, name, Preview(*value), IntRange(min, max)), "out_of_range");
  return fallback;
}

bool FieldReader::Bool(std::string_view name, bool fallback) {
  const ChatJson* value = Find(name);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  WrongType(name, *value, "true or false");
  return fallback;
}

std::string FieldReader::String(std::string_view name, std::string fallback, size_t max_bytes) {
  const ChatJson* value = Find(name);
  if (value == nullptr) return fallback;
  if (!value->is_string()) {
    WrongType(name, *value, "a string");
    return fallback;
  }
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() <= max_bytes) return text;
  Fail(name, fmt::format("{}{} has {} bytes: at most {} are allowed", prefix_, name, text.size(), max_bytes), "too_long");
  return fallback;
}

std::vector<std::string> FieldReader::Strings(std::string_view name, size_t max_count, size_t max_bytes) {
  const ChatJson* value = Find(name);
  if (value == nullptr) return {};
  std::vector<std::string> list;
  if (value->is_string()) {
    list.push_back(value->get<std::string>());
  } else if (value->is_array()) {
    if (value->size() > max_count) {
      Fail(name, fmt::format("{}{} has {} entries: at most {} are allowed", prefix_, name, value->size(), max_count), "too_long");
      return {};
    }
    for (size_t i = 0; i < value->size(); ++i) {
      if (!(*value)[i].is_string()) {
        WrongType(fmt::format("{}[{}]", name, i), (*value)[i], "a string");
        return {};
      }
      list.push_back((*value)[i].get<std::string>());
    }
  } else {
    WrongType(name, *value, "a string or a list of strings");
    return {};
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].empty() || list[i].size() > max_bytes) {
      Fail(name, fmt::format("{}{}[{}] has {} bytes: must be 1..{}", prefix_, name, i, list[i].size(), max_bytes), "out_of_range");
      return {};
    }
  }
  return list;
}

std::vector<int32_t> FieldReader::TokenIds(std::string_view name, size_t max_count, int32_t vocab_size) {
  const ChatJson* value = Find(name);
  if (value == nullptr) return {};
  if (!value->is_array()) {
    WrongType(name, *value, "a list of token ids");
    return {};
  }
  if (value->size() > max_count) {
    Fail(name, fmt::format("{}{} has {} entries: at most {} are allowed", prefix_, name, value->size(), max_count), "too_long");
    return {};
  }
  std::vector<int32_t> ids;
  for (size_t i = 0; i < value->size(); ++i) {
    const ChatJson& id = (*value)[i];
    const bool whole = id.is_number_integer() && !(id.is_number_unsigned() && id.get<uint64_t>() > INT32_MAX);
    if (!whole || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab_size) {
      WrongType(fmt::format("{}[{}]", name, i), id, fmt::format("a token id in 0..{}", vocab_size - 1));
      return {};
    }
    ids.push_back(static_cast<int32_t>(id.get<int64_t>()));
  }
  return ids;
}

void FieldReader::Refuse(std::string_view name, std::string_view why) {
  const ChatJson* value = Find(name);
  if (value == nullptr) return;
  const bool harmless = (value->is_boolean() && !value->get<bool>()) || (value->is_number() && value->get<double>() == 0) ||
                        ((value->is_structured() || value->is_string()) && (value->empty() || *value == ""));
  if (!harmless) Fail(name, fmt::format("{}{} is {}: {}", prefix_, name, Preview(*value), why), "unsupported_value");
}

}  // namespace cachalot
