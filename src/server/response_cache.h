// ResponseCache: whole answers of requests that can have only one: greedy ones, and those that bring their seed. Off by
// default. Which answer gives way is a policy's of the KV cache to say (kv/policy/).
// Invariants: what is found was the answer to a request that is the same in everything an answer depends on, the tenant's
// salt included; only answers that came to their end by themselves are kept, and none larger than a sixteenth of the
// bytes that all may take. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv/block_key.h"
#include "kv/policy/eviction_policy.h"
#include "obs/metrics.h"
#include "server/engine_loop.h"

namespace cachalot {

// Nothing: the request may be answered in several ways, or wants what is too much to keep.
std::optional<BlockKey> ResponseKey(const Request& request, bool seeded);

class ResponseCache {
 public:
  using Response = std::vector<TokenEvent>;  // of all choices, in the order in which they came

  static Result<std::unique_ptr<ResponseCache>> Create(int32_t max_responses, const std::string& policy, MetricRegistry* registry,
                                                       int64_t max_bytes = int64_t{256} << 20);
  std::shared_ptr<const Response> Find(const BlockKey& key);
  void Insert(const BlockKey& key, Response response);
  void Clear();

 private:
  struct KeyHash {
    size_t operator()(const BlockKey& key) const { return key.low; }
  };
  struct Entry {
    BlockKey key;
    std::shared_ptr<const Response> response;
    int64_t num_bytes = 0;
  };

  ResponseCache(int32_t max_responses, std::unique_ptr<EvictionPolicy> policy, MetricRegistry* registry, int64_t max_bytes);
  void Remove(int32_t place, bool evicted);
  void ShowSize();

  const int64_t max_bytes_;
  Counter* const queries_;
  Counter* const hits_;
  Counter* const evictions_;
  Gauge* const entries_gauge_;
  Gauge* const bytes_gauge_;

  std::mutex mutex_;
  const std::unique_ptr<EvictionPolicy> policy_;
  std::vector<Entry> entries_;  // [max_responses]; the policy's blocks
  std::vector<int32_t> free_;
  std::unordered_map<BlockKey, int32_t, KeyHash> places_;
  int64_t num_bytes_ = 0;
};

}  // namespace cachalot
