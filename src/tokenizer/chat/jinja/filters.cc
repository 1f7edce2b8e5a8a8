#include "tokenizer/chat/jinja/filters.h"

#include <algorithm>

#include "tokenizer/chat/jinja/access.h"
#include "tokenizer/chat/jinja/numbers.h"
#include "tokenizer/chat/jinja/text_ops.h"

namespace cachalot::jinja {
namespace {

Result<Value> NotHere(Runtime&, const Value&, const Args&) {
  return Unsupported("the filters pprint, random, striptags, urlize, wordwrap and xmlattr");
}

// What jinja2 has and chat templates have no use for.
constexpr FilterEntry kNotHere[] = {{"pprint", NotHere}, {"random", NotHere},   {"striptags", NotHere},
                                    {"urlize", NotHere}, {"wordwrap", NotHere}, {"xmlattr", NotHere}};

}  // namespace

const FilterEntry* FindFilter(std::string_view name) {
  for (const std::span<const FilterEntry> table : {TextFilters(), ListFilters(), LazyFilters(),
                                                   NumberFilters(), std::span<const FilterEntry>(kNotHere)}) {
    for (const FilterEntry& entry : table) {
      if (entry.name == name) return &entry;
    }
  }
  return nullptr;
}

Result<AttributePath> AttributePath::Make(Runtime& rt, const Value& attribute) {
  AttributePath path;
  if (attribute.is_none() || attribute.is_missing()) return path;
  if (!attribute.is_string()) {
    ASSIGN_OR_RETURN(Value * part, rt.NewValues(1));
    *part = attribute;
    path.parts_ = {part, 1};
    return path;
  }
  ASSIGN_OR_RETURN(const std::vector<Value> names,
                   SplitText(rt, attribute.s, BorrowText(rt, ".", false), -1));
  ASSIGN_OR_RETURN(Value * parts, rt.NewValues(static_cast<int64_t>(names.size())));
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string_view text = names[i].s->view();
    parts[i] = names[i];
    if (!text.empty() && text.find_first_not_of("0123456789") == text.npos) {
      NumberError error;
      const std::optional<Int> index = ParseInt(text, 10, &error);
      if (!index) return IntOverflow();
      parts[i] = Value::Integer(*index);
    }
  }
  path.parts_ = {parts, names.size()};
  return path;
}

Result<Value> AttributePath::Get(Runtime& rt, const Value& item, const Value& otherwise) const {
  Value value = item;
  for (const Value& part : parts_) {
    RETURN_IF_ERROR(rt.Step());
    ASSIGN_OR_RETURN(value, GetItem(rt, value, part));
    if (value.is_undefined() && !otherwise.is_missing() && !otherwise.is_none()) value = otherwise;
  }
  return value;
}

Result<Value> IgnoreCase(Runtime& rt, const Value& value) {
  if (!value.is_string()) return value;
  ASSIGN_OR_RETURN(const String* lower, ChangeCase(rt, value.s, CaseMode::kLower));
  return Value::Str(lower);
}

}  // namespace cachalot::jinja
