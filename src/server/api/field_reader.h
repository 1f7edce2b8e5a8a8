// FieldReader: typed, bounded access to the fields of a request's JSON object. The first thing that is wrong sticks, so
// that a parser reads all its fields and asks once. A field that is null counts as absent.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/api_error.h"
#include "tokenizer/chat/chat_template.h"

namespace cachalot {

// The body of a request as a JSON object, or what is wrong with it. The content type is not looked at: curl's default
// says "form", and everybody means JSON.
std::optional<ApiError> ParseBody(std::string_view body, ChatJson* object);

class FieldReader {
 public:
  // object must be a JSON object and outlive the reader. prefix stands before a field's name in messages.
  explicit FieldReader(const ChatJson& object, std::string prefix = "");

  // Null when absent.
  const ChatJson* Find(std::string_view name) const;
  double Number(std::string_view name, double fallback, double min, double max);
  int64_t Int(std::string_view name, int64_t fallback, int64_t min, int64_t max);
  bool Bool(std::string_view name, bool fallback);
  std::string String(std::string_view name, std::string fallback, size_t max_bytes);
  // One string, or a list of them.
  std::vector<std::string> Strings(std::string_view name, size_t max_count, size_t max_bytes);
  std::vector<int32_t> TokenIds(std::string_view name, size_t max_count, int32_t vocab_size);

  // A field that would change the result and that we cannot serve: any value but the ones of no effect (null, false,
  // empty, zero) is refused with `why`.
  void Refuse(std::string_view name, std::string_view why);

  void Fail(std::string_view param, std::string message, std::string code = "");
  bool ok() const { return !error_.has_value(); }
  const std::optional<ApiError>& error() const { return error_; }

 private:
  void WrongType(std::string_view name, const ChatJson& value, std::string_view wanted);

  const ChatJson& object_;
  const std::string prefix_;
  std::optional<ApiError> error_;
};

// A value on one line for a message, cut short.
std::string Preview(const ChatJson& value);

}  // namespace cachalot
