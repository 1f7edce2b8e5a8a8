// Look-up by key: hashing, and making dicts.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_runtime.h"
#include "tokenizer/chat/jinja/jinja_value.h"

namespace cachalot::jinja {

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

}  // namespace cachalot::jinja
