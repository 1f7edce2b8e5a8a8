// The KV part of a step plan: what the block manager asks the runtime to do with device memory.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace cachalot {

// A KV group as the policy tower sees it: a pool of equal blocks. Which layers and bytes stand behind a block
// is the runtime's business.
struct KvGroupInfo {
  std::string name;
  int32_t block_tokens = 16;
  int32_t num_blocks = 0;       // usable blocks, ids 0 … num_blocks - 1
  int32_t window = 0;           // > 0: only the last `window` tokens are read; earlier blocks may be freed
  int64_t block_bytes = 0;      // over all layers of the group
  int32_t num_swap_blocks = 0;  // places on the host for blocks of sequences that were preempted
  // Only positions [first_token, end_token), multiples of block_tokens, have their place here; only without a
  // window. So the first blocks of a sequence can be of another type than those behind them.
  int32_t first_token = 0;
  int32_t end_token = std::numeric_limits<int32_t>::max();
  bool on_device = false;  // blocks lie in a device's memory, and copies of them run beside the steps

  // Whether entry `index` of a block table holds a block.
  bool Keeps(int32_t index) const {
    return index >= first_token / block_tokens && int64_t{index} * block_tokens < end_token;
  }
};

// Entry `index` of slot `slot`'s block table in `group` becomes `block_id`.
struct BlockWrite {
  int32_t slot = 0;
  int32_t group = 0;
  int32_t index = 0;
  int32_t block_id = 0;
  bool operator==(const BlockWrite&) const = default;
};

// Copies a whole block before the step's forward (copy-on-write of a shared block).
struct BlockCopy {
  int32_t group = 0;
  int32_t from_block = 0;
  int32_t to_block = 0;
  bool operator==(const BlockCopy&) const = default;
};

// Moves a whole block between the device and the host's swap pool; which way is said by the list it stands
// in.
struct BlockMove {
  int32_t group = 0;
  int32_t device_block = 0;
  int32_t host_block = 0;
  bool operator==(const BlockMove&) const = default;
};

}  // namespace cachalot
