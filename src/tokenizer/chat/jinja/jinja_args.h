// Taking apart the arguments of a call, with Python's rules and error messages.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_compare.h"
#include "tokenizer/chat/jinja/jinja_runtime.h"

namespace cachalot::jinja {

// Gives every parameter its argument, a missing value where it has none. A parameter named "" is positional
// only.
Status BindArgs(std::string_view function, std::span<const std::string_view> names, size_t required,
                const Args& args, Value* out);

template <size_t N>
Result<std::array<Value, N>> Bind(std::string_view function, const std::string_view (&names)[N],
                                  size_t required, const Args& args) {
  std::array<Value, N> out;
  RETURN_IF_ERROR(BindArgs(function, names, required, args, out.data()));
  return out;
}
Status ExpectNoArgs(std::string_view function, const Args& args);

// What Python takes for an index: int and bool.
Result<Int> IntArg(std::string_view function, const Value& value);
// The same, kept within ±2^60: two of them can be added.
Result<int64_t> IndexArg(std::string_view function, const Value& value);
Result<const String*> TextArg(std::string_view function, const Value& value);
inline bool Given(const Value& value) {
  return !value.is_missing();
}
// Not given, or None.
inline bool Absent(const Value& value) {
  return value.is_missing() || value.is_none();
}

}  // namespace cachalot::jinja
