// Least recently used. A sequence lets go of its blocks from the last to the first, so of those let go at
// once the end of the text goes before its beginning.
#pragma once

#include "kv/policy/eviction_policy.h"

namespace cachalot {

std::unique_ptr<EvictionPolicy> MakeLruPolicy(int32_t num_blocks);

}  // namespace cachalot
