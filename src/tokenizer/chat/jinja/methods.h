// Methods of strings, dicts, lists, tuples, ranges and cyclers.
#pragma once

#include <string_view>

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_runtime.h"

namespace cachalot::jinja {

using MethodFn = Result<Value> (*)(Runtime& rt, const Value& self, const Args& args);

// A method taken from its object and not called yet.
struct Method {
  std::string_view name;
  Value self;
  MethodFn call;
};

struct MethodEntry {
  std::string_view name;
  MethodFn call;
};

// nullptr when the type has no such method (or the sandbox forbids it: see IsForbiddenMethod).
MethodFn FindMethod(const Value& self, std::string_view name);
// Methods that would change a list or dict: the sandbox hides them.
bool IsForbiddenMethod(const Value& self, std::string_view name);

MethodFn FindStringMethod(std::string_view name);
MethodFn FindStringPredicate(std::string_view name);  // isdigit and the like

}  // namespace cachalot::jinja
