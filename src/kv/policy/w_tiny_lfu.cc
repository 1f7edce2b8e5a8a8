#include "kv/policy/w_tiny_lfu.h"

#include <algorithm>

#include "kv/policy/block_heap.h"
#include "kv/policy/frequency_sketch.h"

namespace cachalot {
namespace {

class WTinyLfuPolicy final : public EvictionPolicy {
 public:
  explicit WTinyLfuPolicy(int32_t num_blocks)
      : window_target_(std::max(1, num_blocks / 100)),
        main_target_(num_blocks - window_target_),
        protected_target_(static_cast<int32_t>(int64_t{main_target_} * 4 / 5)),
        blocks_(static_cast<size_t>(num_blocks)),
        window_order_(num_blocks),
        protected_order_(num_blocks),
        sketch_(num_blocks) {
    for (auto& segment : candidates_) segment = BlockHeap<uint64_t>(num_blocks);
  }

  void Insert(int32_t block, uint64_t key, int32_t reuse_class) override {
    At(block) = {.key = key, .last_use = ++clock_, .segment = kWindow};
    window_order_.Insert(block, clock_);
    sketch_.Add(key);
    // As long as the main part has room, nobody need be asked.
    if (window_order_.size() > window_target_ && num_main_ < main_target_)
      Move(window_order_.Least(), kProbation);
  }
  void Reference(int32_t block) override {
    sketch_.Add(At(block).key);
    Move(block, At(block).segment == kWindow ? kWindow : kProtected);
    if (protected_order_.size() > protected_target_) Move(protected_order_.Least(), kProbation);
  }
  void Release(int32_t block) override { Move(block, At(block).segment); }
  void Erase(int32_t block, bool evicted) override { Leave(block); }
  void AddCandidate(int32_t block) override { Candidates(block).Insert(block, At(block).last_use); }
  void RemoveCandidate(int32_t block) override { Candidates(block).Remove(block); }
  int32_t Victim() override {
    const BlockHeap<uint64_t>& window = candidates_[kWindow];
    const bool has_main = !candidates_[kProbation].empty() || !candidates_[kProtected].empty();
    if (!has_main) return window.Least();
    const int32_t oldest =
        (candidates_[kProbation].empty() ? candidates_[kProtected] : candidates_[kProbation]).Least();
    // The next newcomer would make the window too large.
    if (window.empty() || window_order_.size() < window_target_) return oldest;
    const int32_t newcomer = window.Least();
    if (sketch_.Estimate(At(newcomer).key) <= sketch_.Estimate(At(oldest).key)) return newcomer;
    Move(newcomer, kProbation);
    return oldest;
  }

 private:
  enum Segment : uint8_t { kWindow, kProbation, kProtected };
  struct Block {
    uint64_t key = 0;
    uint64_t last_use = 0;
    Segment segment = kWindow;
  };
  Block& At(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  BlockHeap<uint64_t>& Candidates(int32_t block) { return candidates_[At(block).segment]; }
  // To the newest end of a segment.
  void Move(int32_t block, Segment segment) {
    Block& state = At(block);
    const bool candidate = Candidates(block).Contains(block);
    if (candidate) RemoveCandidate(block);
    Leave(block);
    state.segment = segment;
    state.last_use = ++clock_;
    if (segment == kWindow) window_order_.Insert(block, clock_);
    if (segment == kProtected) protected_order_.Insert(block, clock_);
    if (segment != kWindow) ++num_main_;
    if (candidate) AddCandidate(block);
  }
  void Leave(int32_t block) {
    if (At(block).segment == kWindow) window_order_.Remove(block);
    if (At(block).segment == kProtected) protected_order_.Remove(block);
    if (At(block).segment != kWindow) --num_main_;
  }

  const int32_t window_target_, main_target_, protected_target_;
  std::vector<Block> blocks_;
  uint64_t clock_ = 0;
  int32_t num_main_ = 0;  // resident there, candidates or not; the same of the orders
  BlockHeap<uint64_t> window_order_, protected_order_;
  BlockHeap<uint64_t> candidates_[3] = {BlockHeap<uint64_t>(0), BlockHeap<uint64_t>(0),
                                        BlockHeap<uint64_t>(0)};
  FrequencySketch sketch_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeWTinyLfuPolicy(int32_t num_blocks) {
  return std::make_unique<WTinyLfuPolicy>(num_blocks);
}

}  // namespace cachalot
