// Truth, equality, order and membership, as Python defines them.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_runtime.h"
#include "tokenizer/chat/jinja/jinja_value.h"

namespace cachalot::jinja {

enum class Order : uint8_t { kLess, kLessEqual, kGreater, kGreaterEqual };

// "str", "list", "NoneType", …
std::string_view TypeName(const Value& value);
// The error that any use of an undefined value is.
Status UndefinedError(const Value& value);
template <typename... T>
Status TypeError(fmt::format_string<T...> format, T&&... args) {
  return InvalidArgument(format, std::forward<T>(args)...);
}

bool Truth(const Value& value);
Result<bool> Equal(Runtime& rt, const Value& a, const Value& b, int depth = 0);
// a < b and its like; an error when the two have no order.
Result<bool> InOrder(Runtime& rt, Order order, const Value& a, const Value& b, int depth = 0);
// needle in haystack
Result<bool> Contains(Runtime& rt, const Value& needle, const Value& haystack);

// First position of `needle` in text at or after `from`, npos if none; linear in both.
size_t FindText(std::string_view text, std::string_view needle, size_t from = 0);
// Last position at which `needle` ends at or before `end`.
Result<size_t> FindLastText(Runtime& rt, std::string_view text, std::string_view needle, size_t end);

}  // namespace cachalot::jinja
