// Counts nested evaluation, so that no template can overflow the stack.
#pragma once

#include <cstddef>

#include "tokenizer/chat/jinja/interpreter.h"

namespace cachalot::jinja {

// A macro that calls itself nests two to five evaluations: about as many calls fit as jinja2 allows.
inline constexpr int kEvaluationsPerLevel = 4;
// Whatever the evaluations are, they leave the thread most of its stack (8 MB on Linux unless told
// otherwise).
#ifdef CACHALOT_SANITIZED
inline constexpr ptrdiff_t kMaxStackBytes = 5 << 20;
#else
inline constexpr ptrdiff_t kMaxStackBytes = 3 << 19;
#endif

class Interpreter::DepthGuard {
 public:
  explicit DepthGuard(Runtime& rt) : rt_(rt) {
    if (rt_.depth++ == 0) rt_.stack_base = Here();
  }
  ~DepthGuard() { --rt_.depth; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

  Status status() const {
    if (rt_.depth > rt_.limits().max_depth * kEvaluationsPerLevel || rt_.stack_base - Here() > kMaxStackBytes)
        [[unlikely]] {
      return Exhausted("evaluation is nested too deep, {} levels", rt_.depth);
    }
    return Status::Ok();
  }

 private:
  static const char* Here() { return static_cast<const char*>(__builtin_frame_address(0)); }

  Runtime& rt_;
};

}  // namespace cachalot::jinja
