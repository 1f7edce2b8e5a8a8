#include "kv/policy/s3_fifo.h"

#include <algorithm>

#include "kv/policy/block_heap.h"
#include "kv/policy/ghost_list.h"

namespace cachalot {
namespace {

constexpr uint8_t kMaxCount = 3;
constexpr uint8_t kEntersMain = 2;  // references in the small queue

class S3FifoPolicy final : public EvictionPolicy {
 public:
  explicit S3FifoPolicy(int32_t num_blocks)
      : small_target_(std::max(1, num_blocks / 10)),
        blocks_(static_cast<size_t>(num_blocks)),
        small_(num_blocks),
        main_(num_blocks),
        ghosts_(num_blocks) {}

  void Insert(int32_t block, uint64_t key, int32_t reuse_class) override {
    const bool returns = ghosts_.Take(key).has_value();
    At(block) = {.key = key, .place = ++newest_, .count = 0, .in_main = returns};
    num_small_ += returns ? 0 : 1;
  }
  void Reference(int32_t block) override {
    At(block).count = std::min<uint8_t>(kMaxCount, static_cast<uint8_t>(At(block).count + 1));
  }
  void Erase(int32_t block, bool evicted) override {
    if (At(block).in_main) return;
    --num_small_;
    if (evicted) ghosts_.Insert(At(block).key, {});
  }
  void AddCandidate(int32_t block) override { Queue(block).Insert(block, At(block).place); }
  void RemoveCandidate(int32_t block) override { Queue(block).Remove(block); }
  int32_t Victim() override {
    for (;;) {
      const bool from_small = !small_.empty() && (num_small_ > small_target_ || main_.empty());
      const int32_t block = from_small ? small_.Least() : main_.Least();
      Block& state = At(block);
      if (state.count < (from_small ? kEntersMain : 1)) return block;
      RemoveCandidate(block);
      if (from_small) {
        state.in_main = true;
        state.count = 0;
        --num_small_;
      } else {
        --state.count;
      }
      state.place = ++newest_;
      AddCandidate(block);
    }
  }

 private:
  struct Block {
    uint64_t key = 0;
    uint64_t place = 0;  // in its queue
    uint8_t count = 0;
    bool in_main = false;
  };
  struct Nothing {};
  Block& At(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  BlockHeap<uint64_t>& Queue(int32_t block) { return At(block).in_main ? main_ : small_; }

  const int32_t small_target_;
  std::vector<Block> blocks_;
  uint64_t newest_ = 0;
  int32_t num_small_ = 0;  // resident, candidates or not
  BlockHeap<uint64_t> small_;
  BlockHeap<uint64_t> main_;
  GhostList<Nothing> ghosts_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeS3FifoPolicy(int32_t num_blocks) {
  return std::make_unique<S3FifoPolicy>(num_blocks);
}

}  // namespace cachalot
