// Replays a trace through the real prefix cache (kv/block_pool.h), one policy and size at a time. A request's
// blocks are all in use at once and then let go of, before the next request begins. The measure is the strict
// prefix hit ratio: of the blocks asked for, those found in an unbroken row from the first. Deterministic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/policy/lru_k.h"
#include "tasks/kv_trace.h"

namespace cachalot {

struct KvSimulation {
  std::string policy;  // a name of kv/policy/eviction_policies.h, or "belady"
  int32_t num_blocks = 0;
  int64_t num_hits = 0;  // blocks
  int64_t num_lookups = 0;
  int64_t num_evictions = 0;

  double hit_ratio() const { return static_cast<double>(num_hits) / static_cast<double>(num_lookups); }
};

Result<KvSimulation> SimulateKv(const KvTrace& trace, const std::string& policy, int32_t num_blocks,
                                const LruKOptions& lru_k = {});
// All names that SimulateKv knows.
std::vector<std::string> SimulatedPolicies();

}  // namespace cachalot
