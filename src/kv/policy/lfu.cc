#include "kv/policy/lfu.h"

#include "kv/policy/block_heap.h"

namespace cachalot {
namespace {

class LfuPolicy final : public EvictionPolicy {
 public:
  explicit LfuPolicy(int32_t num_blocks) : uses_(static_cast<size_t>(num_blocks)), candidates_(num_blocks) {}

  void Insert(int32_t block, uint64_t key, int32_t reuse_class) override {
    uses_[static_cast<size_t>(block)] = {1, ++clock_};
  }
  void Reference(int32_t block) override { Update(block, 1); }
  void Release(int32_t block) override { Update(block, 0); }
  void Erase(int32_t block, bool evicted) override {}
  void AddCandidate(int32_t block) override { candidates_.Insert(block, uses_[static_cast<size_t>(block)]); }
  void RemoveCandidate(int32_t block) override { candidates_.Remove(block); }
  int32_t Victim() override { return candidates_.Least(); }

 private:
  using Uses = std::pair<uint64_t, uint64_t>;  // how many, and when the last was
  void Update(int32_t block, uint64_t more) {
    Uses& uses = uses_[static_cast<size_t>(block)];
    uses = {uses.first + more, ++clock_};
    candidates_.ChangeKey(block, uses);
  }

  uint64_t clock_ = 0;
  std::vector<Uses> uses_;
  BlockHeap<Uses> candidates_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeLfuPolicy(int32_t num_blocks) {
  return std::make_unique<LfuPolicy>(num_blocks);
}

}  // namespace cachalot
