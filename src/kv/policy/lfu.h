// Least frequently used: the number of references since the block is resident decides, among equals the least
// recent use. What was popular once stays: the policy to compare with, where popularity does not change.
#pragma once

#include "kv/policy/eviction_policy.h"

namespace cachalot {

std::unique_ptr<EvictionPolicy> MakeLfuPolicy(int32_t num_blocks);

}  // namespace cachalot
