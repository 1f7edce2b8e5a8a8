#include "kv/policy/eviction_policies.h"

#include <array>

#include "kv/policy/arc.h"
#include "kv/policy/lfu.h"
#include "kv/policy/lru.h"
#include "kv/policy/s3_fifo.h"
#include "kv/policy/sieve.h"
#include "kv/policy/w_tiny_lfu.h"

namespace cachalot {
namespace {

struct PolicyRow {
  std::string_view name;
  std::unique_ptr<EvictionPolicy> (*make)(int32_t num_blocks);
};

constexpr std::array kRows = {
    PolicyRow{"lru", MakeLruPolicy},
    PolicyRow{"lfu", MakeLfuPolicy},
    PolicyRow{"lru-k", nullptr},  // has options
    PolicyRow{"arc", MakeArcPolicy},
    PolicyRow{"s3-fifo", MakeS3FifoPolicy},
    PolicyRow{"w-tinylfu", MakeWTinyLfuPolicy},
    PolicyRow{"sieve", MakeSievePolicy},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kRows.size()> names;
  for (size_t i = 0; i < kRows.size(); ++i) names[i] = kRows[i].name;
  return names;
}();

}  // namespace

std::span<const std::string_view> EvictionPolicyNames() {
  return kNames;
}

Result<MakeEvictionPolicy> FindEvictionPolicy(std::string_view name, const LruKOptions& lru_k) {
  for (const PolicyRow& row : kRows) {
    if (row.name != name) continue;
    if (row.make != nullptr) return MakeEvictionPolicy(row.make);
    for (double tau_s : lru_k.tau_s) {
      if (!(tau_s >= 1 && tau_s <= 1e7)) {
        return InvalidArgument("lru-k: a time constant of {} s: must be in 1..10000000", tau_s);
      }
    }
    return MakeEvictionPolicy([lru_k](int32_t num_blocks) { return MakeLruKPolicy(num_blocks, lru_k); });
  }
  return InvalidArgument("cache policy '{}' is none of {}", name, fmt::join(kNames, ", "));
}

}  // namespace cachalot
