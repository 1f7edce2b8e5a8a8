// Macros and the variables they close over.
#pragma once

#include <string_view>

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_ast.h"
#include "tokenizer/chat/jinja/jinja_runtime.h"

namespace cachalot::jinja {

// The variables of one run of a function (the template itself, a macro, a recursive loop).
struct Activation {
  Activation* parent;
  Value* slots;

  Value& At(SlotRef ref) {
    Activation* a = this;
    for (uint16_t i = 0; i < ref.hops; ++i) a = a->parent;
    return a->slots[ref.index];
  }
};

struct Macro {
  const FunctionDef* def;
  Activation* closure;
  std::string_view name;  // "" for the block of a call
};

// macro.name, .arguments and the like; missing when there is no such attribute.
Result<Value> MacroAttribute(Runtime& rt, const Macro* macro, std::string_view name);

}  // namespace cachalot::jinja
