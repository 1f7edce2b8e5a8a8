#include "kv/policy/sieve.h"

#include <utility>

#include "kv/policy/block_heap.h"

namespace cachalot {
namespace {

class SievePolicy final : public EvictionPolicy {
 public:
  explicit SievePolicy(int32_t num_blocks)
      : blocks_(static_cast<size_t>(num_blocks)), ahead_(num_blocks), behind_(num_blocks) {}

  void Insert(int32_t block, uint64_t key, int32_t reuse_class) override {
    At(block) = {.place = ++newest_, .visited = false};
  }
  void Reference(int32_t block) override { At(block).visited = true; }
  void Erase(int32_t block, bool evicted) override {
    if (!evicted || At(block).place != newest_) return;
    // The hand fell off the newest end: what comes now is not next, but last.
    std::swap(ahead_, behind_);
    hand_ = 0;
  }
  void AddCandidate(int32_t block) override {
    (At(block).place >= hand_ ? ahead_ : behind_).Insert(block, At(block).place);
  }
  void RemoveCandidate(int32_t block) override { (ahead_.Contains(block) ? ahead_ : behind_).Remove(block); }
  int32_t Victim() override {
    for (;;) {
      if (ahead_.empty()) {
        std::swap(ahead_, behind_);
        hand_ = 0;
      }
      const int32_t block = ahead_.Least();
      hand_ = At(block).place;
      if (!At(block).visited) return block;
      At(block).visited = false;
      ++hand_;
      ahead_.Remove(block);
      behind_.Insert(block, At(block).place);
    }
  }

 private:
  struct Block {
    uint64_t place = 0;  // in the queue
    bool visited = false;
  };
  Block& At(int32_t block) { return blocks_[static_cast<size_t>(block)]; }

  std::vector<Block> blocks_;
  uint64_t newest_ = 0;
  uint64_t hand_ = 0;
  BlockHeap<uint64_t> ahead_;   // candidates that the hand still has to pass,
  BlockHeap<uint64_t> behind_;  // and those that it has passed
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeSievePolicy(int32_t num_blocks) {
  return std::make_unique<SievePolicy>(num_blocks);
}

}  // namespace cachalot
