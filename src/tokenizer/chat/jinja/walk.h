// Going over the syntax tree.
#pragma once

#include <string_view>

#include "tokenizer/chat/jinja/jinja_ast.h"

namespace cachalot::jinja {

template <typename Visit>
void ForEachChild(const ArgList& args, Visit& visit) {
  for (const ExprPtr& e : args.positional) visit(e);
  for (const auto& [name, e] : args.keywords) visit(e);
  if (args.star) visit(args.star);
  if (args.star_star) visit(args.star_star);
}

// Calls visit(const ExprPtr&) for the expressions directly below, in the order in which jinja2 visits them.
template <typename Visit>
void ForEachChild(const Expr& expr, Visit visit) {
  const auto some = [&](std::initializer_list<const ExprPtr*> children) {
    for (const ExprPtr* child : children) {
      if (*child != nullptr) visit(*child);
    }
  };
  switch (expr.kind) {
    case ExprKind::kConst:
    case ExprKind::kName:
      break;
    case ExprKind::kTuple:
    case ExprKind::kList:
      for (const ExprPtr& item : static_cast<const ListExpr&>(expr).items) visit(item);
      break;
    case ExprKind::kDict:
      for (const auto& [key, value] : static_cast<const DictExpr&>(expr).items) {
        visit(key);
        visit(value);
      }
      break;
    case ExprKind::kUnary:
      some({&static_cast<const UnaryExpr&>(expr).operand});
      break;
    case ExprKind::kBinary: {
      const auto& e = static_cast<const BinaryExpr&>(expr);
      some({&e.left, &e.right});
      break;
    }
    case ExprKind::kConcat:
      for (const ExprPtr& item : static_cast<const ConcatExpr&>(expr).items) visit(item);
      break;
    case ExprKind::kCompare: {
      const auto& e = static_cast<const CompareExpr&>(expr);
      visit(e.first);
      for (const auto& [op, right] : e.rest) visit(right);
      break;
    }
    case ExprKind::kCond: {
      const auto& e = static_cast<const CondExpr&>(expr);
      some({&e.test, &e.then, &e.otherwise});
      break;
    }
    case ExprKind::kAttr:
      some({&static_cast<const AttrExpr&>(expr).object});
      break;
    case ExprKind::kItem: {
      const auto& e = static_cast<const ItemExpr&>(expr);
      some({&e.object, &e.key});
      break;
    }
    case ExprKind::kSlice: {
      const auto& e = static_cast<const SliceExpr&>(expr);
      some({&e.object, &e.start, &e.stop, &e.step});
      break;
    }
    case ExprKind::kCall: {
      const auto& e = static_cast<const CallExpr&>(expr);
      visit(e.callee);
      ForEachChild(e.args, visit);
      break;
    }
    case ExprKind::kFilter: {
      const auto& e = static_cast<const FilterExpr&>(expr);
      some({&e.input});
      ForEachChild(e.args, visit);
      break;
    }
    case ExprKind::kTest: {
      const auto& e = static_cast<const TestExpr&>(expr);
      some({&e.input});
      ForEachChild(e.args, visit);
      break;
    }
  }
}

// Whether a statement or anything inside it assigns the name (parameters apart).
bool AssignsName(const Stmt& statement, std::string_view name);
// Whether the body reads the name before anything in it (also in inner scopes) declares it.
bool UsesUndeclared(const Body& body, std::string_view name);

}  // namespace cachalot::jinja
