// The functions that every template sees: range, dict, namespace, cycler, joiner, raise_exception,
// strftime_now.
#pragma once

#include <string_view>

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_runtime.h"

namespace cachalot::jinja {

struct Builtin {
  std::string_view name;
  Result<Value> (*call)(Runtime& rt, const Args& args);
};

// nullptr when there is no such function.
const Builtin* FindBuiltin(std::string_view name);

}  // namespace cachalot::jinja
