// S3-FIFO (Yang et al., SOSP 2023): newcomers pass through a small queue of a tenth of the blocks, and only
// what was referenced twice there, or comes back soon after it left, enters the main queue, where each
// reference (up to three) earns another round.
#pragma once

#include "kv/policy/eviction_policy.h"

namespace cachalot {

std::unique_ptr<EvictionPolicy> MakeS3FifoPolicy(int32_t num_blocks);

}  // namespace cachalot
