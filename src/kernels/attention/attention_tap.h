// AttentionTap: sees every attention on the CPU, before it is computed, with the step's keys and values in the cache: for
// statistics over a text. One for the whole process while a ScopedAttentionTap lives; without one, asking costs a relaxed
// load. Called on the thread that runs the step.
#pragma once

#include <atomic>

#include "kernels/attention/attention.h"

namespace cachalot {

class AttentionTap {
 public:
  virtual ~AttentionTap() = default;
  virtual void OnAttention(const ExecContext& ctx, const AttentionParams& params) = 0;
};

namespace internal {
extern std::atomic<AttentionTap*> g_attention_tap;
}  // namespace internal

class ScopedAttentionTap {
 public:
  explicit ScopedAttentionTap(AttentionTap* tap) { internal::g_attention_tap = tap; }
  ~ScopedAttentionTap() { internal::g_attention_tap = nullptr; }
  ScopedAttentionTap(const ScopedAttentionTap&) = delete;
  ScopedAttentionTap& operator=(const ScopedAttentionTap&) = delete;
};

}  // namespace cachalot
