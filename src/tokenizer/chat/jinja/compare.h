// Truth, equality, order, membership and hashing, as Python defines them.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/chat/jinja/runtime.h"
#include "tokenizer/chat/jinja/value.h"

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

// An error for lists and dicts.
Result<uint64_t> HashOf(Runtime& rt, const Value& value, int depth = 0);
// The value under a key, nullptr when there is none.
Result<const Value*> DictFind(Runtime& rt, const Dict* dict, const Value& key);
Result<const Value*> DictFind(Runtime& rt, const Dict* dict, std::string_view key);

// A dict (or, without values, a set) in the making: a repeated key keeps its place and takes the last value.
class DictBuilder {
 public:
  explicit DictBuilder(Runtime& rt) : rt_(rt) {}
  // False when the key was there already.
  Result<bool> Set(const Value& key, const Value& value);
  size_t size() const { return entries_.size(); }
  Result<Value> Finish();

 private:
  Runtime& rt_;
  std::vector<DictEntry> entries_;
  std::vector<uint32_t> slots_;  // entry number + 1, 0: free
};

// First position of `needle` in text at or after `from`, npos if none; linear in both.
size_t FindText(std::string_view text, std::string_view needle, size_t from = 0);
// Last position at which `needle` ends at or before `end`.
Result<size_t> FindLastText(Runtime& rt, std::string_view text, std::string_view needle, size_t end);

}  // namespace cachalot::jinja
