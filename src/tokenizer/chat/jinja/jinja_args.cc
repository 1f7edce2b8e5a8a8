#include "tokenizer/chat/jinja/jinja_args.h"

#include <algorithm>

namespace cachalot::jinja {

Status BindArgs(std::string_view function, std::span<const std::string_view> names, size_t required,
                const Args& args, Value* out) {
  if (args.positional.size() > names.size()) {
    return TypeError("{}() takes at most {} arguments ({} given)", function, names.size(),
                     args.positional.size());
  }
  std::copy(args.positional.begin(), args.positional.end(), out);
  for (const Keyword& keyword : args.keywords) {
    const auto it = std::find(names.begin(), names.end(), keyword.name);
    if (it == names.end() || it->empty()) {
      return TypeError("{}() got an unexpected keyword argument '{}'", function, keyword.name);
    }
    Value& place = out[it - names.begin()];
    if (!place.is_missing())
      return TypeError("{}() got multiple values for argument '{}'", function, keyword.name);
    place = keyword.value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (out[i].is_missing()) return TypeError("{}() misses its argument number {}", function, i + 1);
  }
  return Status::Ok();
}

Status ExpectNoArgs(std::string_view function, const Args& args) {
  if (args.positional.empty() && args.keywords.empty()) return Status::Ok();
  return TypeError("{}() takes no arguments", function);
}

Result<Int> IntArg(std::string_view function, const Value& value) {
  if (value.is_int_like()) return value.as_int();
  if (value.is_undefined()) return UndefinedError(value);
  return TypeError("{}: '{}' object cannot be interpreted as an integer", function, TypeName(value));
}

Result<int64_t> IndexArg(std::string_view function, const Value& value) {
  constexpr int64_t kLimit = int64_t{1} << 60;
  ASSIGN_OR_RETURN(const Int i, IntArg(function, value));
  return static_cast<int64_t>(std::clamp<Int>(i, -kLimit, kLimit));
}

Result<const String*> TextArg(std::string_view function, const Value& value) {
  if (value.is_string()) return value.s;
  if (value.is_undefined()) return UndefinedError(value);
  return TypeError("{}: must be str, not {}", function, TypeName(value));
}

}  // namespace cachalot::jinja
