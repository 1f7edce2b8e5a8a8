// W-TinyLFU (Einziger, Friedman and Manes, 2017): newcomers stand in a window of a hundredth of the blocks;
// to enter the main part they must have been asked for more often, by a sketch that halves now and then, than
// the block that would go for them. The main part is an LRU in two segments, four fifths of it protected.
#pragma once

#include "kv/policy/eviction_policy.h"

namespace cachalot {

std::unique_ptr<EvictionPolicy> MakeWTinyLfuPolicy(int32_t num_blocks);

}  // namespace cachalot
