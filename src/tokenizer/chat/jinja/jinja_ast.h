// The syntax tree. Names are resolved to slots by jinja_scope.h; a node is immutable afterwards and shared by
// all renders.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/chat/jinja/arithmetic.h"
#include "tokenizer/chat/jinja/jinja_value.h"

namespace cachalot::jinja {

struct FilterEntry;
struct TestEntry;

// A variable: `hops` functions outwards, then the slot there.
struct SlotRef {
  uint16_t hops = 0;
  uint32_t index = 0;
};

// What a scope does with a variable's slot when it is entered.
struct SlotLoad {
  enum class From : uint8_t { kContext, kOuter, kNothing };
  uint32_t slot;
  From from;
  uint32_t name_id;  // kContext
  SlotRef outer;     // kOuter
};

enum class ExprKind : uint8_t {
  kConst,
  kName,
  kTuple,
  kList,
  kDict,
  kUnary,
  kBinary,
  kConcat,
  kCompare,
  kCond,
  kAttr,
  kItem,
  kSlice,
  kCall,
  kFilter,
  kTest,
};

struct Expr {
  Expr(ExprKind k, int l) : kind(k), line(l) {}
  virtual ~Expr() = default;
  const ExprKind kind;
  const int line;
  int height = 1;  // of the tree below, bounded while parsing
};
using ExprPtr = std::unique_ptr<Expr>;

struct ConstExpr : Expr {
  explicit ConstExpr(int l) : Expr(ExprKind::kConst, l) {}
  Value value;  // scalars
  bool is_text = false;
  std::string text;
  uint32_t id = 0;  // texts: where a render keeps the string
};

struct NameExpr : Expr {
  explicit NameExpr(int l) : Expr(ExprKind::kName, l) {}
  std::string name;
  SlotRef slot;
};

struct ListExpr : Expr {  // kTuple and kList
  ListExpr(ExprKind k, int l) : Expr(k, l) {}
  std::vector<ExprPtr> items;
};

struct DictExpr : Expr {
  explicit DictExpr(int l) : Expr(ExprKind::kDict, l) {}
  std::vector<std::pair<ExprPtr, ExprPtr>> items;
};

enum class UnaryOp : uint8_t { kNot, kNegate, kPositive };
struct UnaryExpr : Expr {
  explicit UnaryExpr(int l) : Expr(ExprKind::kUnary, l) {}
  UnaryOp op = UnaryOp::kNot;
  ExprPtr operand;
};

struct BinaryExpr : Expr {
  explicit BinaryExpr(int l) : Expr(ExprKind::kBinary, l) {}
  BinaryOp op = BinaryOp::kAdd;
  ExprPtr left, right;
};

struct ConcatExpr : Expr {  // a ~ b ~ c
  explicit ConcatExpr(int l) : Expr(ExprKind::kConcat, l) {}
  std::vector<ExprPtr> items;
};

enum class CompareOp : uint8_t { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };
struct CompareExpr : Expr {
  explicit CompareExpr(int l) : Expr(ExprKind::kCompare, l) {}
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
};

struct CondExpr : Expr {  // then if test else otherwise
  explicit CondExpr(int l) : Expr(ExprKind::kCond, l) {}
  ExprPtr test, then, otherwise;  // otherwise may be null
};

struct AttrExpr : Expr {
  explicit AttrExpr(int l) : Expr(ExprKind::kAttr, l) {}
  ExprPtr object;
  std::string name;
};

struct ItemExpr : Expr {
  explicit ItemExpr(int l) : Expr(ExprKind::kItem, l) {}
  ExprPtr object, key;
};

struct SliceExpr : Expr {
  explicit SliceExpr(int l) : Expr(ExprKind::kSlice, l) {}
  ExprPtr object, start, stop, step;  // bounds may be null
};

struct ArgList {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  ExprPtr star, star_star;  // may be null
  bool empty() const { return positional.empty() && keywords.empty() && !star && !star_star; }
};

struct CallExpr : Expr {
  explicit CallExpr(int l) : Expr(ExprKind::kCall, l) {}
  ExprPtr callee;
  ArgList args;
};

struct FilterExpr : Expr {
  explicit FilterExpr(int l) : Expr(ExprKind::kFilter, l) {}
  ExprPtr input;  // null: the body of a filter or set block
  std::string name;
  const FilterEntry* filter =
      nullptr;  // null: unknown; directly inside an if, that is an error only when it is reached
  ArgList args;
};

struct TestExpr : Expr {
  explicit TestExpr(int l) : Expr(ExprKind::kTest, l) {}
  ExprPtr input;
  std::string name;
  const TestEntry* test = nullptr;
  ArgList args;
};

// What can stand left of an assignment: a name, an attribute of a namespace, or a tuple of these.
struct Target {
  enum class Kind : uint8_t { kName, kNamespaceAttr, kTuple };
  Kind kind = Kind::kName;
  int line = 0;
  std::string name, attr;
  std::vector<Target> items;
  uint32_t leaf = 0;  // names and attributes are numbered through: the place in a binding
};
// The slots of a target's leaves (of a namespace attribute: where the namespace is).
using Binding = std::vector<SlotRef>;

enum class StmtKind : uint8_t {
  kOutput,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kBreak,
  kContinue,
};

struct Stmt {
  Stmt(StmtKind k, int l) : kind(k), line(l) {}
  virtual ~Stmt() = default;
  const StmtKind kind;
  const int line;
};
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

struct OutputStmt : Stmt {
  explicit OutputStmt(int l) : Stmt(StmtKind::kOutput, l) {}
  struct Part {
    std::string text;  // template text, when there is no expression
    ExprPtr expr;
  };
  std::vector<Part> parts;
};

struct IfStmt : Stmt {
  explicit IfStmt(int l) : Stmt(StmtKind::kIf, l) {}
  std::vector<std::pair<ExprPtr, Body>> branches;
  Body otherwise;
};

struct ForStmt : Stmt {
  explicit ForStmt(int l) : Stmt(StmtKind::kFor, l) {}
  Target target;
  ExprPtr iterable, filter;  // filter may be null
  Body body, otherwise;
  bool recursive = false;
  // Set by jinja_scope.h. A recursive loop is a function of its own.
  Binding binding, filter_binding;
  SlotRef loop_slot;
  std::vector<SlotLoad> loads, filter_loads, else_loads;
  uint32_t num_slots = 0;
};

struct SetStmt : Stmt {
  explicit SetStmt(int l) : Stmt(StmtKind::kSet, l) {}
  Target target;
  Binding binding;
  ExprPtr value;
};

struct SetBlockStmt : Stmt {
  explicit SetBlockStmt(int l) : Stmt(StmtKind::kSetBlock, l) {}
  Target target;
  Binding binding;
  ExprPtr filter;  // a FilterExpr chain whose innermost input is the body, or null
  Body body;
  std::vector<SlotLoad> loads;
};

// A macro, or the block of a call.
struct FunctionDef {
  std::string name;  // "" for the block of a call
  std::vector<std::string> params;
  std::vector<ExprPtr> defaults;  // of the last parameters
  Body body;
  int line = 0;
  // Set by jinja_scope.h.
  std::vector<uint32_t> param_slots;
  int64_t caller_slot = -1, kwargs_slot = -1, varargs_slot = -1;  // -1: not used in the body
  std::vector<SlotLoad> loads;
  uint32_t num_slots = 0;
};

struct MacroStmt : Stmt {
  explicit MacroStmt(int l) : Stmt(StmtKind::kMacro, l) {}
  FunctionDef function;
  SlotRef slot;
};

// {% call %}, and {% generation %}, which calls its own block.
struct CallBlockStmt : Stmt {
  explicit CallBlockStmt(int l) : Stmt(StmtKind::kCallBlock, l) {}
  ExprPtr call;  // a CallExpr; null: the block is simply rendered
  FunctionDef function;
};

struct FilterBlockStmt : Stmt {
  explicit FilterBlockStmt(int l) : Stmt(StmtKind::kFilterBlock, l) {}
  ExprPtr filter;
  Body body;
  std::vector<SlotLoad> loads;
};

struct WithStmt : Stmt {
  explicit WithStmt(int l) : Stmt(StmtKind::kWith, l) {}
  std::vector<std::pair<Target, ExprPtr>> assignments;
  std::vector<Binding> bindings;
  Body body;
  std::vector<SlotLoad> loads;
};

struct JumpStmt : Stmt {  // kBreak and kContinue
  JumpStmt(StmtKind k, int l) : Stmt(k, l) {}
};

}  // namespace cachalot::jinja
