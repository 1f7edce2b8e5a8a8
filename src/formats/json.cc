#include "formats/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/file.h"
#include "formats/text.h"

namespace cachalot {
namespace {

using nlohmann::json;

// Builds the value from the parser's events, which come without recursion; returning false stops the parser,
// with the reason in error().
class JsonBuilder final : public nlohmann::json_sax<json> {
 public:
  JsonBuilder(std::string_view place, const JsonLimits& limits) : place_(place), limits_(limits) {}

  json& root() { return root_; }
  const Status& error() const { return error_; }

  bool null() override { return Add(nullptr) != nullptr; }
  bool boolean(bool value) override { return Add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return Add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override { return Add(value) != nullptr; }
  bool string(string_t& value) override { return Add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return Fail(Corrupt("{}: binary value in JSON", place_)); }
  bool start_object(std::size_t) override { return Open(json::value_t::object); }
  bool start_array(std::size_t) override { return Open(json::value_t::array); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& key) override {
    const auto [member, inserted] = open_.back()->get_ref<json::object_t&>().try_emplace(std::move(key));
    if (!inserted && limits_.unique_keys) {
      return Fail(Corrupt("{}: key '{}' is given twice", place_, Printable(member->first)));
    }
    member_ = &member->second;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception& exception) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: what": the kind is of no use to a
    // reader.
    std::string_view what = exception.what();
    if (const size_t end = what.find("] "); end != std::string_view::npos) what.remove_prefix(end + 2);
    return Fail(Corrupt("{}: no valid JSON at byte {}: {}", place_, position, Printable(what, 200)));
  }

 private:
  bool Fail(Status status) {
    error_ = std::move(status);
    return false;
  }

  json* Add(json value) {
    if (++num_values_ > limits_.max_values) {
      Fail(Corrupt("{}: more than {} JSON values", place_, limits_.max_values));
      return nullptr;
    }
    json* place = &root_;
    if (!open_.empty() && open_.back()->is_array()) {
      auto& array = open_.back()->get_ref<json::array_t&>();
      array.push_back(std::move(value));
      return &array.back();
    }
    if (!open_.empty()) place = member_;
    *place = std::move(value);
    return place;
  }

  bool Open(json::value_t type) {
    if (static_cast<int>(open_.size()) >= limits_.max_depth) {
      return Fail(Corrupt("{}: JSON nested more than {} deep", place_, limits_.max_depth));
    }
    json* container = Add(json(type));
    if (container == nullptr) return false;
    open_.push_back(container);
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  std::string_view place_;
  const JsonLimits& limits_;
  json root_;
  std::vector<json*> open_;  // an open container is not moved: its parent only grows after it is closed
  json* member_ = nullptr;   // where the value of the last key goes
  int64_t num_values_ = 0;
  Status error_;
};

}  // namespace

Result<json> ParseJson(std::string_view text, std::string_view place, JsonLimits limits) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    return Corrupt("{}: {} bytes of JSON, the limit is {}", place, text.size(), limits.max_bytes);
  }
  JsonBuilder builder(place, limits);
  try {
    if (!json::sax_parse(text, &builder)) return builder.error();
  } catch (const std::exception& exception) {  // out of memory
    return Exhausted("{}: parsing {} bytes of JSON failed: {}", place, text.size(), exception.what());
  }
  return std::move(builder.root());
}

Result<json> ParseJsonFile(const std::string& path, JsonLimits limits) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, limits.max_bytes));
  return ParseJson(text, path, limits);
}

std::string JsonPreview(const json& value, size_t max_chars) {
  // Not dump() of the whole: an error about a large object should not cost its size.
  if (value.is_object()) return fmt::format("an object of {}", value.size());
  if (value.is_array()) {
    std::string text = "[";
    for (size_t i = 0; i < value.size() && text.size() < max_chars; ++i) {
      text += (i > 0 ? ", " : "") + (value[i].is_structured() ? "…" : JsonPreview(value[i], max_chars));
    }
    return text.size() < max_chars ? text + "]" : Printable(text, max_chars);
  }
  if (value.is_string()) return '"' + Printable(value.get_ref<const std::string&>(), max_chars) + '"';
  return value.dump();
}

}  // namespace cachalot
