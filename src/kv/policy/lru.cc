#include "kv/policy/lru.h"

#include "kv/policy/block_heap.h"

namespace cachalot {
namespace {

class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(int32_t num_blocks)
      : last_use_(static_cast<size_t>(num_blocks), 0), candidates_(num_blocks) {}

  void Insert(int32_t block, uint64_t key, int32_t reuse_class) override { Reference(block); }
  void Reference(int32_t block) override {
    last_use_[static_cast<size_t>(block)] = ++clock_;
    candidates_.ChangeKey(block, clock_);
  }
  void Release(int32_t block) override { Reference(block); }
  void Erase(int32_t block, bool evicted) override {}
  void AddCandidate(int32_t block) override {
    candidates_.Insert(block, last_use_[static_cast<size_t>(block)]);
  }
  void RemoveCandidate(int32_t block) override { candidates_.Remove(block); }
  int32_t Victim() override { return candidates_.Least(); }

 private:
  uint64_t clock_ = 0;  // counts uses
  std::vector<uint64_t> last_use_;
  BlockHeap<uint64_t> candidates_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeLruPolicy(int32_t num_blocks) {
  return std::make_unique<LruPolicy>(num_blocks);
}

}  // namespace cachalot
