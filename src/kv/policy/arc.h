// ARC (Megiddo and Modha, FAST 2003): what was referenced once and what was referenced again are two lists in
// order of last use; the share of the first adapts to which list's evicted blocks come back. A block is taken
// before it is known what it will hold, so the choice cannot look at the newcomer.
#pragma once

#include "kv/policy/eviction_policy.h"

namespace cachalot {

std::unique_ptr<EvictionPolicy> MakeArcPolicy(int32_t num_blocks);

}  // namespace cachalot
