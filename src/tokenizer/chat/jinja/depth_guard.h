// Counts nested evaluation, so that no template can overflow the stack.
#pragma once

#include "tokenizer/chat/jinja/interpreter.h"

namespace cachalot::jinja {

// A macro that calls itself nests some six evaluations; as many calls as jinja2 allows fit.
inline constexpr int kEvaluationsPerLevel = 8;

class Interpreter::DepthGuard {
 public:
  explicit DepthGuard(Runtime& rt) : rt_(rt) { ++rt_.depth; }
  ~DepthGuard() { --rt_.depth; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

  Status status() const {
    if (rt_.depth > rt_.limits().max_depth * kEvaluationsPerLevel) [[unlikely]] {
      return Exhausted("evaluation is nested deeper than {}", rt_.limits().max_depth * kEvaluationsPerLevel);
    }
    return Status::Ok();
  }

 private:
  Runtime& rt_;
};

}  // namespace cachalot::jinja
