#include "kv/policy/lru_k.h"

#include <cmath>

#include "kv/policy/block_heap.h"
#include "kv/policy/ghost_list.h"

namespace cachalot {
namespace {

class LruKPolicy final : public EvictionPolicy {
 public:
  LruKPolicy(int32_t num_blocks, const LruKOptions& options)
      : options_(options),
        blocks_(static_cast<size_t>(num_blocks)),
        ghosts_(int64_t{num_blocks} * options.ghosts_per_block) {
    for (double tau_s : options.tau_s) CHECK(tau_s > 0) << tau_s;
    orders_.reserve(kNumReuseClasses);
    for (int32_t i = 0; i < kNumReuseClasses; ++i) orders_.emplace_back(num_blocks);
  }

  void SetTime(int64_t now_us) override { now_s_ = static_cast<double>(now_us) * 1e-6; }
  void Insert(int32_t block, uint64_t key, int32_t reuse_class) override {
    CHECK(reuse_class >= 0 && reuse_class < kNumReuseClasses) << reuse_class;
    At(block) = {.key = key,
                 .last_s = now_s_,
                 .before_s = ghosts_.Take(key).value_or(kNever),
                 .reuse_class = reuse_class};
    SetOrder(block);
  }
  void Reference(int32_t block) override {
    At(block).before_s = At(block).last_s;
    At(block).last_s = now_s_;
    SetOrder(block);
  }
  // Still the same reference, but it lasted until now.
  void Release(int32_t block) override {
    At(block).last_s = now_s_;
    SetOrder(block);
  }
  void Erase(int32_t block, bool evicted) override {
    if (evicted) ghosts_.Insert(At(block).key, At(block).last_s);
  }
  void AddCandidate(int32_t block) override { Orders(block).Insert(block, At(block).order); }
  void RemoveCandidate(int32_t block) override { Orders(block).Remove(block); }
  int32_t Victim() override {
    int32_t victim = -1;
    Order least = {};
    for (size_t i = 0; i < orders_.size(); ++i) {
      if (orders_[i].empty()) continue;
      const int32_t block = orders_[i].Least();
      const Order value = {At(block).order.first - now_s_ / options_.tau_s[i],
                           At(block).order.second};  // ln S
      if (victim >= 0 && least < value) continue;
      victim = block;
      least = value;
    }
    CHECK(victim >= 0) << "a victim among no candidates";
    return victim;
  }

 private:
  using Order = std::pair<double, uint64_t>;  // the static key, then who was used first
  static constexpr double kNever = -1e300;
  struct Block {
    uint64_t key = 0;
    double last_s = 0;
    double before_s = kNever;
    int32_t reuse_class = 0;
    Order order = {};
  };
  Block& At(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  BlockHeap<Order>& Orders(int32_t block) { return orders_[static_cast<size_t>(At(block).reuse_class)]; }
  void SetOrder(int32_t block) {
    Block& state = At(block);
    const double tau_s = options_.tau_s[static_cast<size_t>(state.reuse_class)];
    state.order = {state.last_s / tau_s + std::log1p(std::exp((state.before_s - state.last_s) / tau_s)),
                   ++clock_};
    Orders(block).ChangeKey(block, state.order);
  }

  const LruKOptions options_;
  std::vector<Block> blocks_;
  double now_s_ = 0;
  uint64_t clock_ = 0;                    // counts uses
  std::vector<BlockHeap<Order>> orders_;  // [classes] candidates
  GhostList<double> ghosts_;              // when they were used last
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeLruKPolicy(int32_t num_blocks, const LruKOptions& options) {
  return std::make_unique<LruKPolicy>(num_blocks, options);
}

}  // namespace cachalot
