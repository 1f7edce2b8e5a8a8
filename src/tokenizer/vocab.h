// Vocab: the texts of all tokens and the way back from a text to its id.
// Invariant: ids are 0 … size()-1; an id nobody defined has the empty text and is never found.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace cachalot {

class Vocab {
 public:
  // Far beyond any real vocabulary; ids are stored in 32 bits.
  static constexpr int64_t kMaxSize = int64_t{1} << 24;

  void Reserve(int64_t num_tokens, int64_t num_bytes);

  // Gives `id` its text. A text that another id already has stays that id's when found. kInvalidArgument for
  // an id that is negative, given twice, or so large that the ids could not be nearly without gaps.
  Status Set(int64_t id, std::string_view text);
  // What tokens will be set from now on; bounds the ids by the amount of data there really is.
  void ExpectTokens(int64_t num_tokens) { max_id_ = num_tokens + kMaxGap; }

  int32_t size() const { return static_cast<int32_t>(entries_.size()); }
  bool IsDefined(int64_t id) const {
    return id >= 0 && id < size() && entries_[static_cast<size_t>(id)].size > 0;
  }
  std::string_view Text(int64_t id) const {
    if (id < 0 || id >= size()) return {};
    return Text(entries_[static_cast<size_t>(id)]);
  }
  // -1: none.
  int32_t Find(std::string_view text) const;

 private:
  static constexpr int64_t kMaxGap = 1 << 16;
  struct Entry {
    uint32_t begin = 0;
    uint32_t size = 0;
  };
  // With the text's place: finding costs a miss here and one in the arena.
  struct Slot {
    uint32_t hash = 0;
    int32_t id = -1;
    Entry entry;
  };

  void Grow(size_t num_slots);
  std::string_view Text(Entry entry) const { return {arena_.data() + entry.begin, entry.size}; }

  std::string arena_;
  std::vector<Entry> entries_;
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  size_t num_used_ = 0;
  int64_t max_id_ = kMaxGap;
};

}  // namespace cachalot
