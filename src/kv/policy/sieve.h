// SIEVE (Zhang et al., NSDI 2024): a queue in order of insertion and a hand that goes from its oldest to its
// newest end and round again; it spares, once, what was referenced since it last passed. What the hand cannot
// evict now it passes over, and leaves its mark.
#pragma once

#include "kv/policy/eviction_policy.h"

namespace cachalot {

std::unique_ptr<EvictionPolicy> MakeSievePolicy(int32_t num_blocks);

}  // namespace cachalot
