#include "tokenizer/chat/jinja/walk.h"

namespace cachalot::jinja {
namespace {

bool AssignsName(const Target& target, std::string_view name) {
  if (target.kind == Target::Kind::kName) return target.name == name;
  for (const Target& item : target.items) {
    if (AssignsName(item, name)) return true;
  }
  return false;
}

bool AssignsName(const Body& body, std::string_view name) {
  for (const StmtPtr& s : body) {
    if (jinja::AssignsName(*s, name)) return true;
  }
  return false;
}

// Visits in jinja2's order of a node's fields until the name is read (found) or declared (given up).
class Usage {
 public:
  explicit Usage(std::string_view name) : name_(name) {}
  bool found() const { return found_; }

  void Visit(const Body& body) {
    for (const StmtPtr& s : body) {
      if (done_) return;
      Visit(*s);
    }
  }

 private:
  void Visit(const ExprPtr& expr) {
    if (done_ || expr == nullptr) return;
    if (expr->kind == ExprKind::kName && static_cast<const NameExpr&>(*expr).name == name_) {
      found_ = done_ = true;
      return;
    }
    ForEachChild(*expr, [this](const ExprPtr& child) { Visit(child); });
  }

  void Declare(const Target& target) {
    if (!done_ && AssignsName(target, name_)) done_ = true;
  }

  void Visit(const FunctionDef& function) {
    for (const std::string& param : function.params) {
      if (param == name_) done_ = true;
    }
    for (const ExprPtr& e : function.defaults) Visit(e);
    Visit(function.body);
  }

  void Visit(const Stmt& statement) {
    switch (statement.kind) {
      case StmtKind::kOutput:
        for (const auto& part : static_cast<const OutputStmt&>(statement).parts) Visit(part.expr);
        break;
      case StmtKind::kIf: {
        const auto& s = static_cast<const IfStmt&>(statement);
        for (const auto& [test, body] : s.branches) {
          Visit(test);
          Visit(body);
        }
        Visit(s.otherwise);
        break;
      }
      case StmtKind::kFor: {
        const auto& s = static_cast<const ForStmt&>(statement);
        Declare(s.target);
        Visit(s.iterable);
        Visit(s.body);
        Visit(s.otherwise);
        Visit(s.filter);
        break;
      }
      case StmtKind::kSet: {
        const auto& s = static_cast<const SetStmt&>(statement);
        Declare(s.target);
        Visit(s.value);
        break;
      }
      case StmtKind::kSetBlock: {
        const auto& s = static_cast<const SetBlockStmt&>(statement);
        Declare(s.target);
        Visit(s.filter);
        Visit(s.body);
        break;
      }
      case StmtKind::kMacro:
        Visit(static_cast<const MacroStmt&>(statement).function);
        break;
      case StmtKind::kCallBlock: {
        const auto& s = static_cast<const CallBlockStmt&>(statement);
        Visit(s.call);
        if (!done_) Visit(s.function);
        break;
      }
      case StmtKind::kFilterBlock: {
        const auto& s = static_cast<const FilterBlockStmt&>(statement);
        Visit(s.body);
        Visit(s.filter);
        break;
      }
      case StmtKind::kWith: {
        const auto& s = static_cast<const WithStmt&>(statement);
        for (const auto& [target, value] : s.assignments) Declare(target);
        for (const auto& [target, value] : s.assignments) Visit(value);
        Visit(s.body);
        break;
      }
      case StmtKind::kBreak:
      case StmtKind::kContinue:
        break;
    }
  }

  std::string_view name_;
  bool found_ = false;
  bool done_ = false;
};

}  // namespace

bool AssignsName(const Stmt& statement, std::string_view name) {
  switch (statement.kind) {
    case StmtKind::kIf: {
      const auto& s = static_cast<const IfStmt&>(statement);
      for (const auto& [test, body] : s.branches) {
        if (AssignsName(body, name)) return true;
      }
      return AssignsName(s.otherwise, name);
    }
    case StmtKind::kFor: {
      const auto& s = static_cast<const ForStmt&>(statement);
      return AssignsName(s.target, name) || AssignsName(s.body, name) || AssignsName(s.otherwise, name);
    }
    case StmtKind::kSet:
      return AssignsName(static_cast<const SetStmt&>(statement).target, name);
    case StmtKind::kSetBlock: {
      const auto& s = static_cast<const SetBlockStmt&>(statement);
      return AssignsName(s.target, name) || AssignsName(s.body, name);
    }
    case StmtKind::kMacro:
      return AssignsName(static_cast<const MacroStmt&>(statement).function.body, name);
    case StmtKind::kCallBlock:
      return AssignsName(static_cast<const CallBlockStmt&>(statement).function.body, name);
    case StmtKind::kFilterBlock:
      return AssignsName(static_cast<const FilterBlockStmt&>(statement).body, name);
    case StmtKind::kWith:
      return AssignsName(static_cast<const WithStmt&>(statement).body, name);
    case StmtKind::kOutput:
    case StmtKind::kBreak:
    case StmtKind::kContinue:
      return false;
  }
  return false;
}

bool UsesUndeclared(const Body& body, std::string_view name) {
  Usage usage(name);
  usage.Visit(body);
  return usage.found();
}

}  // namespace cachalot::jinja
