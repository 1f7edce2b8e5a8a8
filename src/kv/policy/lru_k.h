// LRU-K (K = 2) with exponential decay: a block is worth S = exp(-(now - t1)/tau) + exp(-(now - t2)/tau), of
// its last two references; the least goes first. All scores of one tau decay by the same factor, so their
// order stands still, and ln S + now/tau = t1/tau + ln(1 + exp(-(t1 - t2)/tau)) is a key that only a use
// changes. Blocks that went are remembered (four times as many as there are): without that, what comes back
// after a while would always look new, and most of the gain is lost.
// Each class of requests may have its own tau: one order each, and at an eviction the firsts are compared.
#pragma once

#include <array>

#include "kv/policy/eviction_policy.h"

namespace cachalot {

struct LruKOptions {
  // Seconds after which a reference counts 1/e, by reuse class. 600: see docs/measurements. The rate that
  // the project's founding document names, 0.95 per second, is -1 / ln 0.95 = 19.5 s.
  std::array<double, kNumReuseClasses> tau_s = {600, 600, 600, 600};
  int32_t ghosts_per_block = 4;
};

std::unique_ptr<EvictionPolicy> MakeLruKPolicy(int32_t num_blocks, const LruKOptions& options = {});

}  // namespace cachalot
