// What a decision of the prefix cache costs, by policy and size: a full cache of chains of 16 blocks, of
// which one is taken over and let go of (16 references), or one new chain comes in (16 evictions and
// insertions). The goal is less than 1 us a decision with a million blocks.
#include <benchmark/benchmark.h>

#include <memory>
#include <random>
#include <vector>

#include "kv/block_pool.h"
#include "kv/policy/eviction_policies.h"

namespace cachalot {
namespace {

constexpr int32_t kChain = 16;

struct FullCache {
  FullCache(const char* policy, int32_t num_blocks)
      : pool(num_blocks,
             std::make_unique<PrefixIndex>(num_blocks, (*FindEvictionPolicy(policy))(num_blocks))) {
    for (int32_t i = 0; i < num_blocks / kChain; ++i) AddChain();
    // So that the cache is in its usual state: some chains are popular.
    for (int32_t i = 0; i < 2 * num_blocks / kChain; ++i) i % 2 == 0 ? UseChain() : AddChain();
  }
  static BlockKey Key(uint64_t chain, int32_t i) {
    const uint64_t low = (chain * kChain + static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u;
    return {low ^ (low >> 29), chain};
  }
  void Tick() { pool.index()->SetTime(now_us += 10'000); }
  void LetGo() {
    for (int32_t i = kChain; i-- > 0;) pool.Unref(held[i], 0);
  }
  void AddChain() {
    Tick();
    const uint64_t chain = ++num_chains;
    int32_t parent = -1;
    for (int32_t i = 0; i < kChain; ++i) {
      held[i] = pool.Allocate();
      pool.index()->Insert(held[i], Key(chain, i), parent);
      parent = held[i];
    }
    LetGo();
  }
  // Of those that came lately; the ones that have gone are left alone.
  void UseChain() {
    Tick();
    const uint64_t back = rng() % static_cast<uint64_t>(pool.num_blocks() / kChain);
    const uint64_t chain = num_chains > back ? num_chains - back : 1;
    for (int32_t i = 0; i < kChain; ++i) {
      held[i] = pool.index()->Find(Key(chain, i));
      if (held[i] < 0) {
        while (i-- > 0) pool.Unref(held[i], 0);
        return;
      }
      pool.RefCached(held[i]);
    }
    LetGo();
  }

  BlockPool pool;
  std::mt19937_64 rng{1};
  int64_t now_us = 0;
  uint64_t num_chains = 0;
  int32_t held[kChain];
};

void Evict(benchmark::State& state, const char* policy) {
  FullCache cache(policy, static_cast<int32_t>(state.range(0)));
  for (auto _ : state) cache.AddChain();
  state.counters["per_block"] = benchmark::Counter(static_cast<double>(state.iterations() * kChain),
                                                   benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void Take(benchmark::State& state, const char* policy) {
  FullCache cache(policy, static_cast<int32_t>(state.range(0)));
  for (auto _ : state) cache.UseChain();
  state.counters["per_block"] = benchmark::Counter(static_cast<double>(state.iterations() * kChain),
                                                   benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

#define CACHALOT_BENCH(label, name)                                  \
  BENCHMARK_CAPTURE(Evict, label, name)->Arg(1 << 14)->Arg(1 << 20); \
  BENCHMARK_CAPTURE(Take, label, name)->Arg(1 << 20)
CACHALOT_BENCH(lru, "lru");
CACHALOT_BENCH(lfu, "lfu");
CACHALOT_BENCH(lru_k, "lru-k");
CACHALOT_BENCH(arc, "arc");
CACHALOT_BENCH(s3_fifo, "s3-fifo");
CACHALOT_BENCH(w_tiny_lfu, "w-tinylfu");
CACHALOT_BENCH(sieve, "sieve");
#undef CACHALOT_BENCH

}  // namespace
}  // namespace cachalot
