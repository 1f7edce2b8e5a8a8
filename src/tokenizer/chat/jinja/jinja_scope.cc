#include "tokenizer/chat/jinja/jinja_scope.h"

#include <map>
#include <optional>
#include <string_view>

#include "tokenizer/chat/jinja/jinja_symbols.h"
#include "tokenizer/chat/jinja/walk.h"

namespace cachalot::jinja {
namespace {

// First pass over a scope: notes loads and stores in the order of execution, without entering inner scopes.
class Analysis {
 public:
  explicit Analysis(Symbols* symbols) : symbols_(symbols) {}

  void Expression(const ExprPtr& expr) {
    if (expr == nullptr) return;
    if (expr->kind == ExprKind::kName) symbols_->Load(static_cast<const NameExpr&>(*expr).name);
    ForEachChild(*expr, [this](const ExprPtr& child) { Expression(child); });
  }

  void Store(const Target& target) {
    switch (target.kind) {
      case Target::Kind::kName:
        symbols_->Store(target.name);
        break;
      case Target::Kind::kNamespaceAttr:
        symbols_->Load(target.name);
        break;
      case Target::Kind::kTuple:
        for (const Target& item : target.items) Store(item);
        break;
    }
  }
  void Parameter(const Target& target) {
    if (target.kind == Target::Kind::kName) symbols_->Parameter(target.name);
    for (const Target& item : target.items) Parameter(item);
  }

  void Statements(const Body& body) {
    for (const StmtPtr& s : body) Statement(*s);
  }

  void Statement(const Stmt& statement) {
    switch (statement.kind) {
      case StmtKind::kOutput:
        for (const auto& part : static_cast<const OutputStmt&>(statement).parts) Expression(part.expr);
        break;
      case StmtKind::kIf:
        If(static_cast<const IfStmt&>(statement));
        break;
      case StmtKind::kFor:
        Expression(static_cast<const ForStmt&>(statement).iterable);
        break;
      case StmtKind::kSet: {
        const auto& set = static_cast<const SetStmt&>(statement);
        Expression(set.value);
        Store(set.target);
        break;
      }
      case StmtKind::kSetBlock:
        Store(static_cast<const SetBlockStmt&>(statement).target);
        break;
      case StmtKind::kMacro:
        symbols_->Store(static_cast<const MacroStmt&>(statement).function.name);
        break;
      case StmtKind::kCallBlock:
        Expression(static_cast<const CallBlockStmt&>(statement).call);
        break;
      case StmtKind::kFilterBlock:
        Expression(static_cast<const FilterBlockStmt&>(statement).filter);
        break;
      case StmtKind::kWith:
        for (const auto& [target, value] : static_cast<const WithStmt&>(statement).assignments)
          Expression(value);
        break;
      case StmtKind::kBreak:
      case StmtKind::kContinue:
        break;
    }
  }

 private:
  void If(const IfStmt& branch) {
    // jinja2 sees one if with a body, a list of elifs and an else; each elif is an if of its own in the
    // second branch.
    Expression(branch.branches[0].first);
    std::vector<Symbols> layers(3, Symbols::Layer(*symbols_));
    Analysis(&layers[0]).Statements(branch.branches[0].second);
    for (size_t i = 1; i < branch.branches.size(); ++i) {
      Analysis(&layers[1]).Expression(branch.branches[i].first);
      std::vector<Symbols> inner(1, Symbols::Layer(layers[1]));
      Analysis(&inner[0]).Statements(branch.branches[i].second);
      layers[1].Join(inner);
    }
    Analysis(&layers[2]).Statements(branch.otherwise);
    symbols_->Join(layers);
  }

  Symbols* symbols_;
};

// Second pass: enters every scope and writes the slots into the tree.
class Resolver {
 public:
  Result<RootScope> Run(Body* body) {
    Function function;
    Symbols symbols(&function, nullptr);
    Analysis(&symbols).Statements(*body);
    root_.loads = LoadsOf(symbols);
    RETURN_IF_ERROR(Statements(body, symbols, false));
    root_.num_slots = function.num_slots;
    return std::move(root_);
  }

 private:
  std::vector<SlotLoad> LoadsOf(const Symbols& symbols) {
    return symbols.Loads([this](const std::string& name) {
      const auto [it, fresh] = name_ids_.try_emplace(name, static_cast<uint32_t>(root_.names.size()));
      if (fresh) root_.names.push_back(name);
      return it->second;
    });
  }

  static SlotRef Ref(const Symbols& symbols, std::string_view name) {
    return symbols.RefTo(*symbols.Find(name));
  }

  Status Expression(const ExprPtr& expr, const Symbols& symbols, bool soft) {
    if (expr == nullptr) return Status::Ok();
    if (expr->kind == ExprKind::kName) {
      auto& name = static_cast<NameExpr&>(*expr);
      const std::optional<Variable> found = symbols.Find(name.name);
      // Only the filter arguments of a set block are not analysed; jinja2 fails on them in the same way.
      if (!found)
        return InvalidArgument("template line {}: '{}' is not known in this scope", name.line, name.name);
      name.slot = symbols.RefTo(*found);
    }
    if (!soft && expr->kind == ExprKind::kFilter && static_cast<const FilterExpr&>(*expr).filter == nullptr) {
      return InvalidArgument("template line {}: no filter named '{}'", expr->line,
                             static_cast<const FilterExpr&>(*expr).name);
    }
    if (!soft && expr->kind == ExprKind::kTest && static_cast<const TestExpr&>(*expr).test == nullptr) {
      return InvalidArgument("template line {}: no test named '{}'", expr->line,
                             static_cast<const TestExpr&>(*expr).name);
    }
    const bool inner_soft = soft || expr->kind == ExprKind::kCond;
    Status status;
    ForEachChild(*expr, [&](const ExprPtr& child) {
      if (status.ok()) status = Expression(child, symbols, inner_soft);
    });
    return status;
  }

  void Bind(const Target& target, const Symbols& symbols, Binding* out) {
    if (target.kind == Target::Kind::kTuple) {
      for (const Target& item : target.items) Bind(item, symbols, out);
      return;
    }
    if (out->size() <= target.leaf) out->resize(target.leaf + 1);
    (*out)[target.leaf] = Ref(symbols, target.name);
  }

  Status Statements(Body* body, const Symbols& symbols, bool soft) {
    for (StmtPtr& s : *body) RETURN_IF_ERROR(Statement(s.get(), symbols, soft));
    return Status::Ok();
  }

  Status Statement(Stmt* statement, const Symbols& symbols, bool soft) {
    switch (statement->kind) {
      case StmtKind::kOutput:
        for (const auto& part : static_cast<OutputStmt*>(statement)->parts) {
          RETURN_IF_ERROR(Expression(part.expr, symbols, soft));
        }
        return Status::Ok();
      case StmtKind::kIf: {
        auto* branch = static_cast<IfStmt*>(statement);
        for (auto& [test, body] : branch->branches) {
          RETURN_IF_ERROR(Expression(test, symbols, true));
          RETURN_IF_ERROR(Statements(&body, symbols, true));
        }
        return Statements(&branch->otherwise, symbols, true);
      }
      case StmtKind::kFor:
        return For(static_cast<ForStmt*>(statement), symbols, soft);
      case StmtKind::kSet: {
        auto* set = static_cast<SetStmt*>(statement);
        Bind(set->target, symbols, &set->binding);
        return Expression(set->value, symbols, soft);
      }
      case StmtKind::kSetBlock: {
        auto* set = static_cast<SetBlockStmt*>(statement);
        Bind(set->target, symbols, &set->binding);
        Symbols inner(symbols.function(), &symbols);
        Analysis(&inner).Statements(set->body);
        set->loads = LoadsOf(inner);
        RETURN_IF_ERROR(Expression(set->filter, inner, false));
        return Statements(&set->body, inner, false);
      }
      case StmtKind::kMacro: {
        auto* macro = static_cast<MacroStmt*>(statement);
        macro->slot = Ref(symbols, macro->function.name);
        return DefineFunction(&macro->function, symbols);
      }
      case StmtKind::kCallBlock: {
        auto* block = static_cast<CallBlockStmt*>(statement);
        RETURN_IF_ERROR(Expression(block->call, symbols, soft));
        return DefineFunction(&block->function, symbols);
      }
      case StmtKind::kFilterBlock: {
        auto* block = static_cast<FilterBlockStmt*>(statement);
        Symbols inner(symbols.function(), &symbols);
        Analysis analysis(&inner);
        analysis.Statements(block->body);
        analysis.Expression(block->filter);
        block->loads = LoadsOf(inner);
        RETURN_IF_ERROR(Expression(block->filter, inner, false));
        return Statements(&block->body, inner, false);
      }
      case StmtKind::kWith:
        return With(static_cast<WithStmt*>(statement), symbols, soft);
      case StmtKind::kBreak:
      case StmtKind::kContinue:
        return Status::Ok();
    }
    return Status::Ok();
  }

  Status For(ForStmt* loop, const Symbols& symbols, bool soft) {
    if (AssignsName(*loop, "loop")) {
      return InvalidArgument("template line {}: can't assign to special loop variable in for-loop",
                             loop->line);
    }
    RETURN_IF_ERROR(Expression(loop->iterable, symbols, soft));
    Function own{symbols.function(), symbols.function()->depth + 1, 0};
    Function* function = loop->recursive ? &own : symbols.function();

    Symbols inner(function, &symbols);
    const uint32_t loop_slot = inner.Parameter("loop");
    Analysis analysis(&inner);
    analysis.Parameter(loop->target);
    analysis.Statements(loop->body);
    loop->loop_slot = {0, loop_slot};
    loop->loads = LoadsOf(inner);
    Bind(loop->target, inner, &loop->binding);
    RETURN_IF_ERROR(Statements(&loop->body, inner, false));

    if (loop->filter != nullptr) {
      Symbols filter(function, &symbols);
      Analysis filter_analysis(&filter);
      filter_analysis.Parameter(loop->target);
      filter_analysis.Expression(loop->filter);
      loop->filter_loads = LoadsOf(filter);
      Bind(loop->target, filter, &loop->filter_binding);
      RETURN_IF_ERROR(Expression(loop->filter, filter, false));
    }
    Symbols otherwise(function, &symbols);
    Analysis(&otherwise).Statements(loop->otherwise);
    loop->else_loads = LoadsOf(otherwise);
    RETURN_IF_ERROR(Statements(&loop->otherwise, otherwise, false));
    loop->num_slots = own.num_slots;
    return Status::Ok();
  }

  Status With(WithStmt* with, const Symbols& symbols, bool soft) {
    for (auto& [target, value] : with->assignments) RETURN_IF_ERROR(Expression(value, symbols, soft));
    Symbols inner(symbols.function(), &symbols);
    Analysis analysis(&inner);
    for (auto& [target, value] : with->assignments) analysis.Parameter(target);
    analysis.Statements(with->body);
    with->loads = LoadsOf(inner);
    for (auto& [target, value] : with->assignments) Bind(target, inner, &with->bindings.emplace_back());
    return Statements(&with->body, inner, false);
  }

  Status DefineFunction(FunctionDef* def, const Symbols& symbols) {
    Function function{symbols.function(), symbols.function()->depth + 1, 0};
    Symbols inner(&function, &symbols);
    Analysis analysis(&inner);
    for (const std::string& name : def->params) def->param_slots.push_back(inner.Parameter(name));
    for (const ExprPtr& value : def->defaults) analysis.Expression(value);
    analysis.Statements(def->body);
    // Three names mean something special in a macro that uses them without declaring them.
    for (const auto& [name, slot] : {std::pair<const char*, int64_t*>{"caller", &def->caller_slot},
                                     {"kwargs", &def->kwargs_slot},
                                     {"varargs", &def->varargs_slot}}) {
      if (!UsesUndeclared(def->body, name)) continue;
      size_t param = 0;
      while (param < def->params.size() && def->params[param] != name) ++param;
      if (param == def->params.size()) {
        *slot = inner.Parameter(name);
      } else if (slot == &def->caller_slot && param + def->defaults.size() < def->params.size()) {
        return InvalidArgument("template line {}: the special argument 'caller' needs a default", def->line);
      }
    }
    def->loads = LoadsOf(inner);
    for (const ExprPtr& value : def->defaults) RETURN_IF_ERROR(Expression(value, inner, false));
    RETURN_IF_ERROR(Statements(&def->body, inner, false));
    def->num_slots = function.num_slots;
    return Status::Ok();
  }

  RootScope root_;
  std::map<std::string, uint32_t, std::less<>> name_ids_;
};

}  // namespace

Result<RootScope> ResolveScopes(Body* body) {
  return Resolver().Run(body);
}

}  // namespace cachalot::jinja
