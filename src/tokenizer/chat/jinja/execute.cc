// The statements of interpreter.h.
#include "tokenizer/chat/jinja/access.h"
#include "tokenizer/chat/jinja/builtins.h"
#include "tokenizer/chat/jinja/depth_guard.h"
#include "tokenizer/chat/jinja/interpreter.h"
#include "tokenizer/chat/jinja/iterate.h"
#include "tokenizer/chat/jinja/jinja_compare.h"
#include "tokenizer/chat/jinja/jinja_loop.h"
#include "tokenizer/chat/jinja/text_of.h"

namespace cachalot::jinja {

// `for x in y if test`: tests lazily, in variables of its own.
class LoopFilter final : public Iterator {
 public:
  LoopFilter(Interpreter* interpreter, const ForStmt* loop, Activation* act, const Value& iterable)
      : interpreter_(interpreter), loop_(loop), act_(act), iterable_(iterable) {}

  Result<bool> Next(Runtime& rt, Value* out) override {
    if (source_ == nullptr) {
      ASSIGN_OR_RETURN(source_, MakeIterator(rt, iterable_));
      interpreter_->Enter(loop_->filter_loads, act_);
    }
    for (;;) {
      Value item;
      ASSIGN_OR_RETURN(const bool more, source_->Next(rt, &item));
      if (!more) return false;
      RETURN_IF_ERROR(interpreter_->Assign(loop_->target, loop_->filter_binding, item, act_));
      ASSIGN_OR_RETURN(const Value holds, interpreter_->Evaluate(*loop_->filter, act_));
      if (!Truth(holds)) continue;
      ASSIGN_OR_RETURN(*out, interpreter_->ReadTarget(loop_->target, loop_->filter_binding, act_));
      return true;
    }
  }

 private:
  Interpreter* interpreter_;
  const ForStmt* loop_;
  Activation* act_;
  Value iterable_;
  Iterator* source_ = nullptr;
};

Interpreter::Interpreter(const Program& program, Runtime& rt)
    : program_(program), rt_(rt), context_(program.scope().names.size()), texts_(program.num_texts()) {
  const auto& names = program.scope().names;
  for (size_t i = 0; i < names.size(); ++i) {
    if (const Builtin* builtin = FindBuiltin(names[i])) {
      context_[i] = Value::Make(Kind::kBuiltin);
      context_[i].builtin = builtin;
    }
  }
}

void Interpreter::Define(std::string_view name, const Value& value) {
  const auto& names = program_.scope().names;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) context_[i] = value;
  }
}

Status Interpreter::Run(StrBuilder* out) {
  out_ = out;
  Activation* act = NewActivation(nullptr, program_.scope().num_slots);
  Enter(program_.scope().loads, act);
  Status status = Execute(program_.body(), act).status();
  if (status.ok()) status = CheckOutputSize();
  if (!status.ok() && error_line_ > 0)
    return status.WithContext(fmt::format("template line {}", error_line_));
  return status;
}

Activation* Interpreter::NewActivation(Activation* parent, uint32_t num_slots) {
  return rt_.arena.New<Activation>(Activation{parent, rt_.arena.NewArray<Value>(num_slots)});
}

void Interpreter::Enter(const std::vector<SlotLoad>& loads, Activation* act) {
  for (const SlotLoad& load : loads) {
    Value& slot = act->slots[load.slot];
    switch (load.from) {
      case SlotLoad::From::kNothing:
        slot = Value();
        break;
      case SlotLoad::From::kContext:
        slot = context_[load.name_id];
        break;
      case SlotLoad::From::kOuter:
        slot = act->At(load.outer);
        break;
    }
  }
}

Status Interpreter::CheckOutputSize() const {
  RETURN_IF_ERROR(out_->status());
  if (static_cast<int64_t>(out_->size()) > rt_.limits().max_output_bytes) {
    return Exhausted("the output is longer than {} bytes", rt_.limits().max_output_bytes);
  }
  return Status::Ok();
}

Result<Interpreter::Flow> Interpreter::Execute(const Body& body, Activation* act) {
  const DepthGuard guard(rt_);
  RETURN_IF_ERROR(guard.status());
  for (const StmtPtr& statement : body) {
    Result<Flow> flow = ExecuteOne(*statement, act);
    if (!flow.ok() && error_line_ == 0) error_line_ = statement->line;
    if (!flow.ok() || *flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::ExecuteOne(const Stmt& statement, Activation* act) {
  RETURN_IF_ERROR(rt_.Step());
  switch (statement.kind) {
    case StmtKind::kOutput:
      RETURN_IF_ERROR(Output(static_cast<const OutputStmt&>(statement), act));
      break;
    case StmtKind::kIf:
      return If(static_cast<const IfStmt&>(statement), act);
    case StmtKind::kFor:
      return For(static_cast<const ForStmt&>(statement), act);
    case StmtKind::kSet: {
      const auto& s = static_cast<const SetStmt&>(statement);
      ASSIGN_OR_RETURN(const Value value, Evaluate(*s.value, act));
      RETURN_IF_ERROR(Assign(s.target, s.binding, value, act));
      break;
    }
    case StmtKind::kSetBlock:
      return SetBlock(static_cast<const SetBlockStmt&>(statement), act);
    case StmtKind::kMacro: {
      const auto& s = static_cast<const MacroStmt&>(statement);
      Value macro = Value::Make(Kind::kMacro);
      macro.macro = rt_.arena.New<Macro>(Macro{&s.function, act, s.function.name});
      act->At(s.slot) = macro;
      break;
    }
    case StmtKind::kCallBlock:
      RETURN_IF_ERROR(CallBlock(static_cast<const CallBlockStmt&>(statement), act));
      break;
    case StmtKind::kFilterBlock:
      return FilterBlock(static_cast<const FilterBlockStmt&>(statement), act);
    case StmtKind::kWith:
      return With(static_cast<const WithStmt&>(statement), act);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Status Interpreter::Output(const OutputStmt& s, Activation* act) {
  for (const OutputStmt::Part& part : s.parts) {
    if (part.expr == nullptr) {
      RETURN_IF_ERROR(rt_.Bytes(static_cast<int64_t>(part.text.size())));
      out_->Add(part.text, false);
    } else {
      ASSIGN_OR_RETURN(const Value value, Evaluate(*part.expr, act));
      RETURN_IF_ERROR(AddText(rt_, value, out_));
    }
  }
  return CheckOutputSize();
}

Status Interpreter::WriteString(const Value& value) {
  if (!value.is_string()) return TypeError("a block's result must be a string, not {}", TypeName(value));
  RETURN_IF_ERROR(AddText(rt_, value, out_));
  return CheckOutputSize();
}

Result<Interpreter::Flow> Interpreter::If(const IfStmt& s, Activation* act) {
  for (const auto& [test, body] : s.branches) {
    ASSIGN_OR_RETURN(const Value holds, Evaluate(*test, act));
    if (Truth(holds)) return Execute(body, act);
  }
  return Execute(s.otherwise, act);
}

Result<Interpreter::Flow> Interpreter::For(const ForStmt& s, Activation* act) {
  ASSIGN_OR_RETURN(const Value iterable, Evaluate(*s.iterable, act));
  if (!s.recursive) return RunLoop(s, iterable, 0, act, act);
  ASSIGN_OR_RETURN(const String* text, RunRecursiveLoop(s, iterable, 0, act));
  RETURN_IF_ERROR(WriteString(Value::Str(text)));
  return Flow::kNext;
}

Result<const String*> Interpreter::RunRecursiveLoop(const ForStmt& s, const Value& iterable, int64_t depth0,
                                                    Activation* enclosing) {
  const DepthGuard guard(rt_);
  RETURN_IF_ERROR(guard.status());
  StrBuilder text(rt_);
  StrBuilder* outer = std::exchange(out_, &text);
  const Status status =
      RunLoop(s, iterable, depth0, enclosing, NewActivation(enclosing, s.num_slots)).status();
  out_ = outer;
  RETURN_IF_ERROR(status);
  return text.Finish();
}

Result<Interpreter::Flow> Interpreter::RunLoop(const ForStmt& s, const Value& iterable, int64_t depth0,
                                               Activation* enclosing, Activation* act) {
  Value source = iterable;
  if (s.filter != nullptr) {
    ASSIGN_OR_RETURN(source, WrapIterator(rt_, LoopFilter(this, &s, act, iterable),
                                          iterable.is(Kind::kIterator) ? iterable.iter : nullptr));
  }
  Loop* loop = rt_.arena.New<Loop>();
  ASSIGN_OR_RETURN(loop->iterator, MakeIterator(rt_, source));
  loop->iterable = source;
  loop->depth0 = depth0;
  loop->enclosing = enclosing;
  if (s.recursive) loop->recursive = &s;
  Value loop_value = Value::Make(Kind::kLoop);
  loop_value.loop = loop;

  // As in jinja2, an else block also follows a loop whose every turn ended with break or continue.
  bool completed_turn = false;
  for (;;) {
    Value item;
    ASSIGN_OR_RETURN(const bool more, loop->Advance(rt_, &item));
    if (!more) break;
    RETURN_IF_ERROR(rt_.Step());
    act->At(s.loop_slot) = loop_value;
    RETURN_IF_ERROR(Assign(s.target, s.binding, item, act));
    Enter(s.loads, act);
    ASSIGN_OR_RETURN(const Flow turn, Execute(s.body, act));
    if (turn == Flow::kBreak) break;
    if (turn == Flow::kNext) completed_turn = true;
  }
  // The loop's variables end with it.
  act->At(s.loop_slot) = Value();
  for (const SlotRef& ref : s.binding) act->At(ref) = Value();
  for (const SlotLoad& load : s.loads) act->slots[load.slot] = Value();
  if (completed_turn || s.otherwise.empty()) return Flow::kNext;
  Enter(s.else_loads, act);
  return Execute(s.otherwise, act);
}

Result<const String*> Interpreter::Capture(const Body& body, Activation* act, Flow* flow) {
  StrBuilder text(rt_);
  StrBuilder* outer = std::exchange(out_, &text);
  const Result<Flow> end = Execute(body, act);
  out_ = outer;
  RETURN_IF_ERROR(end.status());
  *flow = *end;
  return text.Finish();
}

Result<Interpreter::Flow> Interpreter::SetBlock(const SetBlockStmt& s, Activation* act) {
  Enter(s.loads, act);
  Flow flow;
  ASSIGN_OR_RETURN(const String* text, Capture(s.body, act, &flow));
  if (flow != Flow::kNext) return flow;  // a loop around the block goes on: nothing is set
  Value value = Value::Str(text);
  if (s.filter != nullptr) {
    const Value* outer = std::exchange(block_input_, &value);
    Result<Value> filtered = Evaluate(*s.filter, act);
    block_input_ = outer;
    RETURN_IF_ERROR(filtered.status());
    value = *filtered;
  }
  RETURN_IF_ERROR(Assign(s.target, s.binding, value, act));
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::FilterBlock(const FilterBlockStmt& s, Activation* act) {
  Enter(s.loads, act);
  Flow flow;
  ASSIGN_OR_RETURN(const String* text, Capture(s.body, act, &flow));
  if (flow != Flow::kNext) return flow;
  const Value value = Value::Str(text);
  const Value* outer = std::exchange(block_input_, &value);
  const Result<Value> filtered = Evaluate(*s.filter, act);
  block_input_ = outer;
  RETURN_IF_ERROR(filtered.status());
  RETURN_IF_ERROR(WriteString(*filtered));
  return Flow::kNext;
}

Status Interpreter::CallBlock(const CallBlockStmt& s, Activation* act) {
  const Macro* block = rt_.arena.New<Macro>(Macro{&s.function, act, {}});
  if (s.call == nullptr) {
    ASSIGN_OR_RETURN(const String* text, CallMacro(*block, Args{}));
    return WriteString(Value::Str(text));
  }
  Value caller = Value::Make(Kind::kMacro);
  caller.macro = block;
  ASSIGN_OR_RETURN(const Value result, Call(static_cast<const CallExpr&>(*s.call), act, &caller));
  return WriteString(result);
}

Result<Interpreter::Flow> Interpreter::With(const WithStmt& s, Activation* act) {
  Enter(s.loads, act);
  for (size_t i = 0; i < s.assignments.size(); ++i) {
    ASSIGN_OR_RETURN(const Value value, Evaluate(*s.assignments[i].second, act));
    RETURN_IF_ERROR(Assign(s.assignments[i].first, s.bindings[i], value, act));
  }
  return Execute(s.body, act);
}

Status Interpreter::Assign(const Target& target, const Binding& binding, const Value& value,
                           Activation* act) {
  switch (target.kind) {
    case Target::Kind::kName:
      act->At(binding[target.leaf]) = value;
      return Status::Ok();
    case Target::Kind::kNamespaceAttr:
      return SetAttribute(target, act->At(binding[target.leaf]), value);
    case Target::Kind::kTuple:
      break;
  }
  if (!IsIterable(value)) return TypeError("cannot unpack non-iterable {} object", TypeName(value));
  ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(rt_, value));
  if (items.size() != target.items.size()) {
    return InvalidArgument("cannot unpack {} values into {} names", items.size(), target.items.size());
  }
  for (size_t i = 0; i < items.size(); ++i) RETURN_IF_ERROR(Assign(target.items[i], binding, items[i], act));
  return Status::Ok();
}

Result<Value> Interpreter::ReadTarget(const Target& target, const Binding& binding, Activation* act) {
  if (target.kind != Target::Kind::kTuple) return act->At(binding[target.leaf]);
  std::vector<Value> items;
  for (const Target& item : target.items) {
    ASSIGN_OR_RETURN(const Value value, ReadTarget(item, binding, act));
    items.push_back(value);
  }
  return MakeSequence(rt_, Kind::kTuple, items);
}

Status Interpreter::SetAttribute(const Target& target, const Value& object, const Value& value) {
  if (!object.is(Kind::kNamespace)) return InvalidArgument("cannot assign attribute on non-namespace object");
  Namespace* ns = object.ns;
  if (Namespace::Attr* attr = ns->Find(target.attr)) {
    attr->value = value;
    return Status::Ok();
  }
  auto* attr = rt_.arena.New<Namespace::Attr>(
      Namespace::Attr{target.attr, Value::Str(BorrowText(rt_, target.attr, false)), value, nullptr});
  (ns->last != nullptr ? ns->last->next : ns->first) = attr;
  ns->last = attr;
  ++ns->size;
  return Status::Ok();
}

}  // namespace cachalot::jinja
