#include "kv/policy/lru.h"

#include "kv/policy/block_heap.h"

namespace cachalot {
namespace {

class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(int32_t num_blocks)
      : last_use_(static_cast<size_t>(num_blocks), 0), candidates_(num_blocks) {}

  void Touch(int32_t block) override {
    last_use_[static_cast<size_t>(block)] = ++clock_;
    if (candidates_.Contains(block)) {
      candidates_.Remove(block);
      AddCandidate(block);
    }
  }
  void AddCandidate(int32_t block) override {
    candidates_.Insert(block, last_use_[static_cast<size_t>(block)]);
  }
  void RemoveCandidate(int32_t block) override { candidates_.Remove(block); }
  int32_t Victim() const override { return candidates_.Least(); }

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
