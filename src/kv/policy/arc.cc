#include "kv/policy/arc.h"

#include <algorithm>

#include "kv/policy/block_heap.h"
#include "kv/policy/ghost_list.h"

namespace cachalot {
namespace {

class ArcPolicy final : public EvictionPolicy {
 public:
  explicit ArcPolicy(int32_t num_blocks)
      : num_blocks_(num_blocks),
        blocks_(static_cast<size_t>(num_blocks)),
        once_(num_blocks),
        again_(num_blocks),
        once_ghosts_(num_blocks),
        again_ghosts_(2 * int64_t{num_blocks}) {}

  void Insert(int32_t block, uint64_t key, int32_t reuse_class) override {
    const auto once = static_cast<double>(once_ghosts_.size());
    const auto again = static_cast<double>(again_ghosts_.size());
    bool returns = true;
    if (once_ghosts_.Take(key)) {
      target_ = std::min<double>(num_blocks_, target_ + std::max(1.0, again / once));
    } else if (again_ghosts_.Take(key)) {
      target_ = std::max(0.0, target_ - std::max(1.0, once / again));
    } else {
      returns = false;
    }
    At(block) = {.key = key, .last_use = ++clock_, .again = returns};
    ++(returns ? num_again_ : num_once_);
    TrimGhosts();
  }
  void Reference(int32_t block) override {
    Block& state = At(block);
    const bool candidate = List(block).Contains(block);
    if (candidate) RemoveCandidate(block);
    if (!state.again) {
      state.again = true;
      --num_once_;
      ++num_again_;
    }
    state.last_use = ++clock_;
    if (candidate) AddCandidate(block);
  }
  void Release(int32_t block) override {
    At(block).last_use = ++clock_;
    List(block).ChangeKey(block, clock_);
  }
  void Erase(int32_t block, bool evicted) override {
    const Block& state = At(block);
    --(state.again ? num_again_ : num_once_);
    if (!evicted) return;
    (state.again ? again_ghosts_ : once_ghosts_).Insert(state.key, {});
    TrimGhosts();
  }
  void AddCandidate(int32_t block) override { List(block).Insert(block, At(block).last_use); }
  void RemoveCandidate(int32_t block) override { List(block).Remove(block); }
  int32_t Victim() override {
    if (again_.empty() || (!once_.empty() && num_once_ > target_)) return once_.Least();
    return again_.Least();
  }

 private:
  struct Block {
    uint64_t key = 0;
    uint64_t last_use = 0;
    bool again = false;
  };
  struct Nothing {};
  Block& At(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  BlockHeap<uint64_t>& List(int32_t block) { return At(block).again ? again_ : once_; }
  // Resident and remembered together: once at most num_blocks, all at most twice that.
  void TrimGhosts() {
    while (once_ghosts_.size() > 0 && num_once_ + once_ghosts_.size() > num_blocks_) once_ghosts_.PopOldest();
    while (again_ghosts_.size() > 0 &&
           num_once_ + num_again_ + once_ghosts_.size() + again_ghosts_.size() > 2 * int64_t{num_blocks_}) {
      again_ghosts_.PopOldest();
    }
  }

  const int32_t num_blocks_;
  std::vector<Block> blocks_;
  uint64_t clock_ = 0;
  double target_ = 0;                     // blocks that those referenced once may hold
  int64_t num_once_ = 0, num_again_ = 0;  // resident, candidates or not
  BlockHeap<uint64_t> once_, again_;
  GhostList<Nothing> once_ghosts_, again_ghosts_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeArcPolicy(int32_t num_blocks) {
  return std::make_unique<ArcPolicy>(num_blocks);
}

}  // namespace cachalot
