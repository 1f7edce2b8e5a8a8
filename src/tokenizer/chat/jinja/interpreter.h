// Walks the tree of a program and writes its output. One interpreter is one render.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/chat/jinja/jinja_ast.h"
#include "tokenizer/chat/jinja/jinja_macro.h"
#include "tokenizer/chat/jinja/jinja_program.h"
#include "tokenizer/chat/jinja/jinja_runtime.h"
#include "tokenizer/chat/jinja/jinja_strings.h"

namespace cachalot::jinja {

class Interpreter {
 public:
  Interpreter(const Program& program, Runtime& rt);

  // Sets a variable of the context. The name must outlive the render.
  void Define(std::string_view name, const Value& value);
  // Errors name the line of the template.
  Status Run(StrBuilder* out);

 private:
  friend class LoopFilter;
  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  struct CallArgs {
    std::vector<Value> positional;
    std::vector<Keyword> keywords;
    Args View() const { return {positional, keywords}; }
  };
  class DepthGuard;

  // Statements (execute.cc)
  Result<Flow> Execute(const Body& body, Activation* act);
  Result<Flow> ExecuteOne(const Stmt& statement, Activation* act);
  Status Output(const OutputStmt& s, Activation* act);
  Result<Flow> If(const IfStmt& s, Activation* act);
  Result<Flow> For(const ForStmt& s, Activation* act);
  Result<Flow> SetBlock(const SetBlockStmt& s, Activation* act);
  Status CallBlock(const CallBlockStmt& s, Activation* act);
  Result<Flow> FilterBlock(const FilterBlockStmt& s, Activation* act);
  Result<Flow> With(const WithStmt& s, Activation* act);
  // The loop itself, over a value; `act` holds the loop's variables.
  Result<Flow> RunLoop(const ForStmt& s, const Value& iterable, int64_t depth0, Activation* enclosing,
                       Activation* act);
  Result<const String*> RunRecursiveLoop(const ForStmt& s, const Value& iterable, int64_t depth0,
                                         Activation* enclosing);
  // A body rendered into a string of its own. Jumps to a loop around it come back in `flow`.
  Result<const String*> Capture(const Body& body, Activation* act, Flow* flow);
  Status WriteString(const Value& value);
  void Enter(const std::vector<SlotLoad>& loads, Activation* act);
  Status Assign(const Target& target, const Binding& binding, const Value& value, Activation* act);
  Result<Value> ReadTarget(const Target& target, const Binding& binding, Activation* act);
  Status SetAttribute(const Target& target, const Value& object, const Value& value);
  Status CheckOutputSize() const;

  // Expressions (evaluate.cc)
  Result<Value> Evaluate(const Expr& e, Activation* act);
  Result<Value> EvaluateNode(const Expr& e, Activation* act);
  Result<Value> Constant(const ConstExpr& e);
  Result<Value> Name(const NameExpr& e, Activation* act);
  Result<Value> List(const ListExpr& e, Activation* act);
  Result<Value> Dictionary(const DictExpr& e, Activation* act);
  Result<Value> Unary(const UnaryExpr& e, Activation* act);
  Result<Value> Binary(const BinaryExpr& e, Activation* act);
  Result<Value> Concat(const ConcatExpr& e, Activation* act);
  Result<Value> Compare(const CompareExpr& e, Activation* act);
  Result<Value> Conditional(const CondExpr& e, Activation* act);
  Result<Value> Attribute(const AttrExpr& e, Activation* act);
  Result<Value> Item(const ItemExpr& e, Activation* act);
  Result<Value> Slice(const SliceExpr& e, Activation* act);
  Result<Value> Filter(const FilterExpr& e, Activation* act);
  Result<Value> Test(const TestExpr& e, Activation* act);

  // Calls (jinja_call.cc)
  Status EvaluateArgs(const ArgList& list, Activation* act, CallArgs* out);
  Result<Value> Call(const CallExpr& e, Activation* act, const Value* caller = nullptr);
  Result<Value> CallValue(const Value& callee, const Args& args);
  Result<const String*> CallMacro(const Macro& macro, const Args& args);

  Activation* NewActivation(Activation* parent, uint32_t num_slots);

  const Program& program_;
  Runtime& rt_;
  std::vector<Value> context_;        // by name_id
  std::vector<const String*> texts_;  // string constants, made when first used
  StrBuilder* out_ = nullptr;
  const Value* block_input_ =
      nullptr;  // what a filter without input filters: the body of a filter or set block
  int error_line_ = 0;
};

}  // namespace cachalot::jinja
