// The names of a scope while jinja_scope.cc finds out what they mean.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/chat/jinja/jinja_ast.h"

namespace cachalot::jinja {

// A function's slots: the root, a macro, the block of a call, a recursive loop.
struct Function {
  Function* parent = nullptr;
  int depth = 0;
  uint32_t num_slots = 0;
};

struct Variable {
  const Function* function;
  uint32_t slot;
};

// The names of one scope while it is analysed. The branches of an if are layers over it: they see what it
// has, and what they add is joined afterwards.
class Symbols {
 public:
  Symbols(Function* function, const Symbols* parent) : function_(function), parent_(parent) {}
  static Symbols Layer(const Symbols& below) {
    Symbols layer(below.function_, below.parent_);
    layer.below_ = &below;
    layer.slots_ = below.slots_;
    return layer;
  }

  Function* function() const { return function_; }

  std::optional<Variable> Find(std::string_view name) const {
    for (const Symbols* s = this; s != nullptr; s = s->parent_) {
      if (const std::optional<uint32_t> slot = s->FindHere(name)) return Variable{s->function_, *slot};
    }
    return std::nullopt;
  }

  void Load(const std::string& name) {
    if (!Find(name)) loads_[Define(name)] = {Source::kContext, name, {}};
  }
  void Store(const std::string& name) {
    stores_.insert(name);
    if (FindHere(name)) return;
    const std::optional<Variable> outer = FindOutside(name);
    loads_[Define(name)] = outer ? Entry{Source::kOuter, name, *outer} : Entry{Source::kNothing, name, {}};
  }
  uint32_t Parameter(const std::string& name) {
    stores_.insert(name);
    const uint32_t slot = Define(name);
    loads_[slot] = {Source::kParameter, name, {}};
    return slot;
  }

  // What only a branch assigns keeps, where that branch is not taken, the value from outside.
  void Join(const std::vector<Symbols>& layers) {
    Names stores;
    for (const Symbols& layer : layers) {
      for (const std::string& name : layer.stores_) {
        if (!StoresHere(name)) stores.insert(name);
      }
    }
    for (const Symbols& layer : layers) {
      for (const auto& [name, slot] : layer.refs_) refs_[name] = slot;
      for (const auto& [slot, entry] : layer.loads_) loads_[slot] = entry;
      stores_.insert(layer.stores_.begin(), layer.stores_.end());
    }
    for (const std::string& name : stores) {
      const std::optional<Variable> outer = FindOutside(name);
      loads_[*FindHere(name)] =
          outer ? Entry{Source::kOuter, name, *outer} : Entry{Source::kContext, name, {}};
    }
  }

  // What entering the scope does; `name_id` numbers the names of the context.
  template <typename NameId>
  std::vector<SlotLoad> Loads(NameId name_id) const {
    std::vector<SlotLoad> out;
    for (const auto& [slot, entry] : loads_) {
      switch (entry.source) {
        case Source::kParameter:
          break;
        case Source::kNothing:
          out.push_back({slot, SlotLoad::From::kNothing, 0, {}});
          break;
        case Source::kContext:
          out.push_back({slot, SlotLoad::From::kContext, name_id(entry.name), {}});
          break;
        case Source::kOuter:
          out.push_back({slot, SlotLoad::From::kOuter, 0, RefTo(entry.outer)});
          break;
      }
    }
    return out;
  }

  SlotRef RefTo(const Variable& v) const {
    return {static_cast<uint16_t>(function_->depth - v.function->depth), v.slot};
  }

 private:
  using Names = std::set<std::string, std::less<>>;
  using Slots = std::map<std::string, uint32_t, std::less<>>;
  enum class Source : uint8_t { kParameter, kNothing, kContext, kOuter };
  struct Entry {
    Source source = Source::kNothing;
    std::string name;
    Variable outer{};
  };

  std::optional<uint32_t> FindHere(std::string_view name) const {
    for (const Symbols* s = this; s != nullptr; s = s->below_) {
      const auto it = s->refs_.find(name);
      if (it != s->refs_.end()) return it->second;
    }
    return std::nullopt;
  }
  std::optional<Variable> FindOutside(std::string_view name) const {
    return parent_ != nullptr ? parent_->Find(name) : std::nullopt;
  }
  bool StoresHere(const std::string& name) const {
    for (const Symbols* s = this; s != nullptr; s = s->below_) {
      if (s->stores_.contains(name)) return true;
    }
    return false;
  }
  // All layers share the slot of a name.
  uint32_t Define(const std::string& name) {
    const auto [it, fresh] = slots_->try_emplace(name, 0);
    if (fresh) it->second = function_->num_slots++;
    refs_[name] = it->second;
    return it->second;
  }

  Function* function_;
  const Symbols* parent_;
  const Symbols* below_ = nullptr;
  Slots refs_;
  std::map<uint32_t, Entry> loads_;
  Names stores_;
  std::shared_ptr<Slots> slots_ = std::make_shared<Slots>();
};

}  // namespace cachalot::jinja
