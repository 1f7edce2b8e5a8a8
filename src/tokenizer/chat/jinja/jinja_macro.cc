#include "tokenizer/chat/jinja/jinja_macro.h"

#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_strings.h"

namespace cachalot::jinja {

Result<Value> MacroAttribute(Runtime& rt, const Macro* macro, std::string_view name) {
  if (name == "name") {
    return macro->name.empty() ? Value::None() : Value::Str(BorrowText(rt, macro->name, false));
  }
  if (name == "arguments") {
    std::vector<Value> names;
    for (const std::string& param : macro->def->params)
      names.push_back(Value::Str(BorrowText(rt, param, false)));
    return MakeSequence(rt, Kind::kTuple, names);
  }
  if (name == "caller") return Value::Bool(macro->def->caller_slot >= 0);
  if (name == "catch_kwargs") return Value::Bool(macro->def->kwargs_slot >= 0);
  if (name == "catch_varargs") return Value::Bool(macro->def->varargs_slot >= 0);
  return Value();
}

}  // namespace cachalot::jinja
