// BlockTable: where the tokens of one sequence lie in one KV group. Entry i holds positions [i, i + 1) *
// block_tokens. Invariant: entries [0, num_dropped) fell out of the group's window, or lie in front of what it
// keeps, and hold no block; all later ones do. Positions behind what it keeps have no entry.
#pragma once

#include <cstdint>
#include <vector>

namespace cachalot {

inline constexpr int32_t kNoBlock = -1;

struct BlockTable {
  std::vector<int32_t> blocks;  // capacity for the longest sequence from the start
  int32_t num_dropped = 0;
  int32_t num_tokens = 0;  // positions [0, num_tokens) have their place (or had it, before it was dropped)
  bool may_share_last = false;  // the last block may have other holders, and be partly filled

  int32_t num_entries() const { return static_cast<int32_t>(blocks.size()); }
  int32_t num_held() const { return num_entries() - num_dropped; }
};

// What a preempted sequence holds on the host: a table for each group, of blocks of its swap pool.
struct SwappedTables {
  std::vector<BlockTable> tables;
  bool empty() const { return tables.empty(); }
};

}  // namespace cachalot
