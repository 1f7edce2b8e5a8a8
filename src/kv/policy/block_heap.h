// BlockHeap: a set of block ids ordered by key, from which any can be removed. O(log n), and nothing
// allocates after construction. Equal keys are ordered by id, so that the order does not depend on history.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"

namespace cachalot {

template <typename Key>
class BlockHeap {
 public:
  explicit BlockHeap(int32_t num_blocks) : place_(static_cast<size_t>(num_blocks), kAbsent) {
    heap_.reserve(static_cast<size_t>(num_blocks));
  }

  bool empty() const { return heap_.empty(); }
  int32_t size() const { return static_cast<int32_t>(heap_.size()); }
  bool Contains(int32_t block) const { return place_[static_cast<size_t>(block)] != kAbsent; }
  int32_t Least() const {
    CHECK(!heap_.empty()) << "the least of no blocks";
    return heap_[0].second;
  }

  void Insert(int32_t block, Key key) {
    CHECK(!Contains(block)) << "block " << block << " is there already";
    heap_.emplace_back(key, block);
    SiftUp(heap_.size() - 1);
  }
  void Remove(int32_t block) {
    CHECK(Contains(block)) << "block " << block << " is not there";
    const auto hole = static_cast<size_t>(place_[static_cast<size_t>(block)]);
    place_[static_cast<size_t>(block)] = kAbsent;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (hole == heap_.size()) return;
    heap_[hole] = last;
    SiftUp(hole);
    SiftDown(static_cast<size_t>(place_[static_cast<size_t>(last.second)]));
  }
  // The block's, if it is there.
  void ChangeKey(int32_t block, Key key) {
    if (!Contains(block)) return;
    const auto at = static_cast<size_t>(place_[static_cast<size_t>(block)]);
    heap_[at].first = key;
    SiftUp(at);
    SiftDown(static_cast<size_t>(place_[static_cast<size_t>(block)]));
  }

 private:
  using Entry = std::pair<Key, int32_t>;
  static constexpr int32_t kAbsent = -1;

  void SiftUp(size_t at) {
    const Entry entry = heap_[at];
    for (; at > 0 && entry < heap_[(at - 1) / 2]; at = (at - 1) / 2) Put(at, heap_[(at - 1) / 2]);
    Put(at, entry);
  }
  void SiftDown(size_t at) {
    const Entry entry = heap_[at];
    for (;;) {
      size_t child = 2 * at + 1;
      if (child >= heap_.size()) break;
      if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
      if (!(heap_[child] < entry)) break;
      Put(at, heap_[child]);
      at = child;
    }
    Put(at, entry);
  }
  void Put(size_t at, const Entry& entry) {
    heap_[at] = entry;
    place_[static_cast<size_t>(entry.second)] = static_cast<int32_t>(at);
  }

  std::vector<Entry> heap_;
  std::vector<int32_t> place_;  // [blocks] index into heap_, or kAbsent
};

}  // namespace cachalot
