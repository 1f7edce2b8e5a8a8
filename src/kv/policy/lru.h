// Least recently used: who was let go of first goes first.
#pragma once

#include "kv/policy/eviction_policy.h"

namespace cachalot {

std::unique_ptr<EvictionPolicy> MakeLruPolicy(int32_t num_blocks);

}  // namespace cachalot
