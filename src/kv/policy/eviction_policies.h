// The table of cache policies, by name.
#pragma once

#include <span>
#include <string_view>

#include "base/status.h"
#include "kv/policy/eviction_policy.h"
#include "kv/policy/lru_k.h"

namespace cachalot {

// "lru", "lfu", "lru-k", "arc", "s3-fifo", "w-tinylfu", "sieve".
std::span<const std::string_view> EvictionPolicyNames();
Result<MakeEvictionPolicy> FindEvictionPolicy(std::string_view name, const LruKOptions& lru_k = {});

}  // namespace cachalot
