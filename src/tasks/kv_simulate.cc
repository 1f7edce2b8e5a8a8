#include "tasks/kv_simulate.h"

#include <limits>
#include <memory>
#include <unordered_map>

#include "kv/block_pool.h"
#include "kv/policy/belady.h"
#include "kv/policy/eviction_policies.h"

namespace cachalot {
namespace {

// Of each block of each request: the request that uses it next. Whoever is never used again comes last.
std::vector<std::vector<int64_t>> NextUses(const KvTrace& trace) {
  std::vector<std::vector<int64_t>> next(trace.requests.size());
  std::unordered_map<uint64_t, int64_t> seen;
  for (size_t i = trace.requests.size(); i-- > 0;) {
    for (uint64_t block : trace.requests[i].blocks) {
      const auto [entry, is_new] = seen.try_emplace(block, std::numeric_limits<int64_t>::max());
      next[i].push_back(entry->second);
    }
    for (uint64_t block : trace.requests[i].blocks) seen[block] = static_cast<int64_t>(i);
  }
  return next;
}

class Replay {
 public:
  Replay(int32_t num_blocks, std::unique_ptr<EvictionPolicy> policy, BeladyPolicy* belady)
      : pool_(num_blocks, std::make_unique<PrefixIndex>(num_blocks, std::move(policy))), belady_(belady) {}

  // Returns how many of the blocks it asks for it found.
  int64_t Serve(const KvTraceRequest& request, const std::vector<int64_t>* next_uses) {
    PrefixIndex& index = *pool_.index();
    index.SetTime(request.time_us);
    held_.clear();
    int64_t num_hits = 0;
    bool unbroken = true;
    for (size_t i = 0; i < request.blocks.size(); ++i) {
      if (belady_ != nullptr) belady_->SetNextUse((*next_uses)[i]);
      const BlockKey key{request.blocks[i], 0};
      const int32_t known = index.Find(key);
      unbroken &= known >= 0;
      if (known >= 0) {
        if (unbroken && static_cast<int32_t>(i) < request.num_looked_up) ++num_hits;
        pool_.RefCached(known);
        held_.push_back(known);
        continue;
      }
      if (pool_.num_free() == 0) break;  // it alone is larger than the cache
      const int32_t block = pool_.Allocate();
      index.Insert(block, key, held_.empty() ? -1 : held_.back());
      held_.push_back(block);
    }
    while (!held_.empty()) {
      pool_.Unref(held_.back(), 0);
      held_.pop_back();
    }
    return num_hits;
  }
  int64_t num_evictions() const { return pool_.index()->num_evictions(); }

 private:
  BlockPool pool_;
  BeladyPolicy* const belady_;
  std::vector<int32_t> held_;
};

}  // namespace

std::vector<std::string> SimulatedPolicies() {
  std::vector<std::string> names(EvictionPolicyNames().begin(), EvictionPolicyNames().end());
  names.push_back("belady");
  return names;
}

Result<KvSimulation> SimulateKv(const KvTrace& trace, const std::string& policy, int32_t num_blocks,
                                const LruKOptions& lru_k) {
  if (num_blocks < 1) return InvalidArgument("a cache of {} blocks: at least 1 is needed", num_blocks);
  std::unique_ptr<EvictionPolicy> order;
  BeladyPolicy* belady = nullptr;
  std::vector<std::vector<int64_t>> next_uses(trace.requests.size());
  if (policy == "belady") {
    auto owned = std::make_unique<BeladyPolicy>(num_blocks);
    belady = owned.get();
    order = std::move(owned);
    next_uses = NextUses(trace);
  } else {
    ASSIGN_OR_RETURN(const MakeEvictionPolicy make, FindEvictionPolicy(policy, lru_k));
    order = make(num_blocks);
  }
  KvSimulation result{.policy = policy, .num_blocks = num_blocks, .num_lookups = trace.num_lookups};
  Replay replay(num_blocks, std::move(order), belady);
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    result.num_hits += replay.Serve(trace.requests[i], &next_uses[i]);
  }
  result.num_evictions = replay.num_evictions();
  return result;
}

}  // namespace cachalot
