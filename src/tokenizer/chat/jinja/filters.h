// The filters: value|name(arguments).
#pragma once

#include <string_view>

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_runtime.h"

namespace cachalot::jinja {

using FilterFn = Result<Value> (*)(Runtime& rt, const Value& input, const Args& args);

struct FilterEntry {
  std::string_view name;
  FilterFn apply;
};

// nullptr when there is none.
const FilterEntry* FindFilter(std::string_view name);

// Filters by file.
std::span<const FilterEntry> TextFilters();
std::span<const FilterEntry> ListFilters();
std::span<const FilterEntry> LazyFilters();
std::span<const FilterEntry> NumberFilters();

// item.a.b.0 as `attribute` arguments name it: a dotted path, an integer, or None for the item itself.
class AttributePath {
 public:
  static Result<AttributePath> Make(Runtime& rt, const Value& attribute);
  // A part that is undefined becomes `otherwise`, if that is given.
  Result<Value> Get(Runtime& rt, const Value& item, const Value& otherwise = Value()) const;

 private:
  std::span<const Value> parts_;
};
// Strings in lower case, everything else as it is.
Result<Value> IgnoreCase(Runtime& rt, const Value& value);

}  // namespace cachalot::jinja
