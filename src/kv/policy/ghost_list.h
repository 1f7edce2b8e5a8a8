// GhostList: what is remembered of blocks that are gone: key → value, first in, first forgotten. Invariant: a
// key is there at most once. Everything is O(1), and nothing allocates after construction: entries are linked
// in order of age, and found through a chained hash table.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace cachalot {

template <typename Value>
class GhostList {
 public:
  explicit GhostList(int64_t capacity)
      : entries_(static_cast<size_t>(std::max<int64_t>(1, capacity))),
        buckets_(std::bit_ceil(entries_.size()), kNone) {
    for (size_t i = 0; i + 1 < entries_.size(); ++i) entries_[i].next = static_cast<int32_t>(i + 1);
    free_ = 0;
  }

  int64_t size() const { return size_; }

  // The value is taken out.
  std::optional<Value> Take(uint64_t key) {
    for (int32_t* link = &Bucket(key); *link != kNone; link = &At(*link).next) {
      const int32_t id = *link;
      if (At(id).key != key) continue;
      *link = At(id).next;
      (At(id).older == kNone ? oldest_ : At(At(id).older).newer) = At(id).newer;
      (At(id).newer == kNone ? newest_ : At(At(id).newer).older) = At(id).older;
      At(id).next = free_;
      free_ = id;
      --size_;
      return At(id).value;
    }
    return std::nullopt;
  }
  // Replaces what was known under the key; forgets the oldest if there is no room.
  void Insert(uint64_t key, Value value) {
    Take(key);
    if (free_ == kNone) PopOldest();
    const int32_t id = free_;
    free_ = At(id).next;
    int32_t& bucket = Bucket(key);
    At(id) = {.key = key, .value = value, .next = bucket, .older = newest_, .newer = kNone};
    bucket = id;
    (newest_ == kNone ? oldest_ : At(newest_).newer) = id;
    newest_ = id;
    ++size_;
  }
  // There is one.
  void PopOldest() { Take(At(oldest_).key); }

 private:
  static constexpr int32_t kNone = -1;
  struct Entry {
    uint64_t key = 0;
    Value value = {};
    int32_t next = kNone;  // in its bucket, or of the free ones
    int32_t older = kNone, newer = kNone;
  };
  Entry& At(int32_t id) { return entries_[static_cast<size_t>(id)]; }
  // Keys are hashes, or small numbers in tests: the multiplication spreads both.
  int32_t& Bucket(uint64_t key) {
    return buckets_[((key * 0x9e3779b97f4a7c15u) >> 32) & (buckets_.size() - 1)];
  }

  std::vector<Entry> entries_;
  std::vector<int32_t> buckets_;
  int32_t free_ = kNone, oldest_ = kNone, newest_ = kNone;
  int64_t size_ = 0;
};

}  // namespace cachalot
