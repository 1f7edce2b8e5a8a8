// Calls of interpreter.h: functions, methods, macros, loops.
#include "tokenizer/chat/jinja/access.h"
#include "tokenizer/chat/jinja/builtins.h"
#include "tokenizer/chat/jinja/depth_guard.h"
#include "tokenizer/chat/jinja/dict.h"
#include "tokenizer/chat/jinja/interpreter.h"
#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_compare.h"
#include "tokenizer/chat/jinja/jinja_loop.h"
#include "tokenizer/chat/jinja/methods.h"

namespace cachalot::jinja {

Status Interpreter::EvaluateArgs(const ArgList& list, Activation* act, CallArgs* out) {
  out->positional.reserve(list.positional.size());
  for (const ExprPtr& e : list.positional) {
    ASSIGN_OR_RETURN(const Value value, Evaluate(*e, act));
    out->positional.push_back(value);
  }
  for (const auto& [name, e] : list.keywords) {
    ASSIGN_OR_RETURN(const Value value, Evaluate(*e, act));
    out->keywords.push_back({name, value});
  }
  if (list.star != nullptr) {
    ASSIGN_OR_RETURN(const Value star, Evaluate(*list.star, act));
    ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(rt_, star));
    out->positional.insert(out->positional.end(), items.begin(), items.end());
  }
  if (list.star_star == nullptr) return Status::Ok();
  ASSIGN_OR_RETURN(const Value mapping, Evaluate(*list.star_star, act));
  if (!mapping.is_dict()) return TypeError("argument after ** must be a mapping, not {}", TypeName(mapping));
  const size_t named = out->keywords.size();
  for (uint32_t i = 0; i < mapping.dict->size; ++i) {
    RETURN_IF_ERROR(rt_.Work(1 + static_cast<int64_t>(named)));
    const DictEntry& entry = mapping.dict->entries[i];
    if (!entry.key.is_string()) return TypeError("keywords must be strings");
    const std::string_view name = entry.key.s->view();
    for (size_t k = 0; k < named; ++k) {
      if (out->keywords[k].name == name)
        return TypeError("got multiple values for keyword argument '{}'", name);
    }
    out->keywords.push_back({name, entry.value, HasUser(entry.key.s)});
  }
  return Status::Ok();
}

Result<Value> Interpreter::Call(const CallExpr& e, Activation* act, const Value* caller) {
  CallArgs args;
  Value callee;
  if (e.callee->kind == ExprKind::kAttr) {
    const auto& attr = static_cast<const AttrExpr&>(*e.callee);
    ASSIGN_OR_RETURN(const Value object, Evaluate(*attr.object, act));
    // The common case without a method object in between.
    if (object.is_string() || object.is_dict()) {
      if (const MethodFn method = FindMethod(object, attr.name)) {
        RETURN_IF_ERROR(EvaluateArgs(e.args, act, &args));
        if (caller != nullptr) args.keywords.push_back({"caller", *caller});
        return method(rt_, object, args.View());
      }
    }
    ASSIGN_OR_RETURN(callee, GetAttribute(rt_, object, attr.name));
  } else {
    ASSIGN_OR_RETURN(callee, Evaluate(*e.callee, act));
  }
  RETURN_IF_ERROR(EvaluateArgs(e.args, act, &args));
  if (caller != nullptr) args.keywords.push_back({"caller", *caller});
  return CallValue(callee, args.View());
}

Result<Value> Interpreter::CallValue(const Value& callee, const Args& args) {
  switch (callee.kind) {
    case Kind::kUndefined:
      return UndefinedError(callee);
    case Kind::kBuiltin:
      return callee.builtin->call(rt_, args);
    case Kind::kMethod:
      return callee.method->call(rt_, callee.method->self, args);
    case Kind::kMacro: {
      ASSIGN_OR_RETURN(const String* text, CallMacro(*callee.macro, args));
      return Value::Str(text);
    }
    case Kind::kJoiner: {
      if (!args.positional.empty() || !args.keywords.empty()) return TypeError("a joiner takes no arguments");
      const bool used = std::exchange(callee.joiner->used, true);
      return used ? callee.joiner->separator : Value::Str(BorrowText(rt_, "", false));
    }
    case Kind::kLoop: {
      const Loop& loop = *callee.loop;
      if (loop.recursive == nullptr) {
        return TypeError("the loop must have the 'recursive' marker to be called recursively");
      }
      const bool by_name = args.keywords.size() == 1 && args.keywords[0].name == "iterable";
      if (args.positional.size() + by_name != 1 || args.keywords.size() != by_name) {
        return TypeError("loop() takes one iterable");
      }
      ASSIGN_OR_RETURN(
          const String* text,
          RunRecursiveLoop(*loop.recursive, by_name ? args.keywords[0].value : args.positional[0],
                           loop.depth0 + 1, loop.enclosing));
      return Value::Str(text);
    }
    default:
      return TypeError("'{}' object is not callable", TypeName(callee));
  }
}

Result<const String*> Interpreter::CallMacro(const Macro& macro, const Args& args) {
  const DepthGuard guard(rt_);
  RETURN_IF_ERROR(guard.status());
  const FunctionDef& def = *macro.def;
  const size_t num_params = def.params.size();
  Activation* act = NewActivation(macro.closure, def.num_slots);
  if (args.positional.size() > num_params && def.varargs_slot < 0) {
    return TypeError("macro '{}' takes not more than {} argument(s)", macro.name, num_params);
  }
  const size_t given = std::min(num_params, args.positional.size());
  for (size_t i = 0; i < given; ++i) act->slots[def.param_slots[i]] = args.positional[i];

  Value caller;
  DictBuilder extra(rt_);
  for (const Keyword& keyword : args.keywords) {
    RETURN_IF_ERROR(rt_.Work(1 + static_cast<int64_t>(num_params >> 2)));
    size_t i = given;
    while (i < num_params && def.params[i] != keyword.name) ++i;
    if (i < num_params) {
      act->slots[def.param_slots[i]] = keyword.value;
    } else if (def.caller_slot >= 0 && keyword.name == "caller") {
      caller = keyword.value;
    } else if (def.kwargs_slot >= 0) {
      RETURN_IF_ERROR(
          extra.Set(Value::Str(BorrowText(rt_, keyword.name, keyword.name_from_user)), keyword.value)
              .status());
    } else {
      return TypeError("macro '{}' takes no keyword argument '{}'", macro.name, keyword.name);
    }
  }
  if (def.caller_slot >= 0) {
    const bool defined = !caller.is_missing() && !caller.is_none();
    act->slots[def.caller_slot] = defined ? caller : MakeUndefined(rt_, "No caller defined");
  }
  if (def.kwargs_slot >= 0) {
    ASSIGN_OR_RETURN(act->slots[def.kwargs_slot], extra.Finish());
  }
  if (def.varargs_slot >= 0) {
    ASSIGN_OR_RETURN(act->slots[def.varargs_slot],
                     MakeSequence(rt_, Kind::kTuple, args.positional.subspan(given)));
  }
  Enter(def.loads, act);
  for (size_t i = given; i < num_params; ++i) {
    Value& slot = act->slots[def.param_slots[i]];
    if (!slot.is_missing()) continue;
    const size_t first_default = num_params - def.defaults.size();
    if (i < first_default) {
      slot = MakeUndefined(rt_, "a parameter was not provided");
    } else {
      ASSIGN_OR_RETURN(slot, Evaluate(*def.defaults[i - first_default], act));
    }
  }
  Flow flow;  // a macro's body has no loop to jump to
  return Capture(def.body, act, &flow);
}

}  // namespace cachalot::jinja
