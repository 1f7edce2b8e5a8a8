// BlockManager: blocks of preempted sequences in the host's swap pools.
#include "base/check.h"
#include "kv/block_manager.h"

namespace cachalot {

bool BlockManager::CanSwapOut(int32_t slot) const {
  for (int32_t g = 0; g < num_groups(); ++g) {
    if (table(slot, g).num_held() > swap_pool(g).num_free()) return false;
  }
  return true;
}

void BlockManager::SwapOut(int32_t slot, uint64_t step_id, SwappedTables* swapped,
                           std::vector<BlockMove>* moves) {
  CHECK(swapped->empty()) << "slot " << slot << " is swapped out already";
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockTable on_host = table(slot, g);
    for (size_t i = static_cast<size_t>(on_host.num_dropped); i < on_host.blocks.size(); ++i) {
      const int32_t device_block = on_host.blocks[i];
      on_host.blocks[i] = swap_pools_[static_cast<size_t>(g)].Allocate();
      moves->push_back({.group = g, .device_block = device_block, .host_block = on_host.blocks[i]});
    }
    swapped->tables.push_back(std::move(on_host));
  }
  Free(slot, step_id);
}

void BlockManager::SwapIn(int32_t slot, uint64_t step_id, SwappedTables* swapped,
                          std::vector<BlockWrite>* writes, std::vector<BlockMove>* moves) {
  for (int32_t g = 0; g < num_groups(); ++g) {
    const BlockTable& on_host = swapped->tables[static_cast<size_t>(g)];
    BlockTable& held = Table(slot, g);
    CHECK(held.blocks.empty()) << "slot " << slot << " holds blocks";
    held.num_dropped = on_host.num_dropped;
    held.num_tokens = on_host.num_tokens;
    held.blocks.assign(static_cast<size_t>(on_host.num_dropped), kNoBlock);
    for (int32_t index = on_host.num_dropped; index < on_host.num_entries(); ++index) {
      const int32_t block = pools_[static_cast<size_t>(g)].Allocate();
      held.blocks.push_back(block);
      moves->push_back(
          {.group = g, .device_block = block, .host_block = on_host.blocks[static_cast<size_t>(index)]});
      writes->push_back({.slot = slot, .group = g, .index = index, .block_id = block});
    }
  }
  DropSwapped(swapped, step_id);
}

void BlockManager::TruncateSwapped(SwappedTables* swapped, int32_t num_tokens, uint64_t last_step) {
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& on_host = swapped->tables[static_cast<size_t>(g)];
    CHECK(num_tokens <= on_host.num_tokens) << num_tokens << " of " << on_host.num_tokens << " swapped tokens";
    on_host.num_tokens = num_tokens;
    while (on_host.num_entries() > NumEntries(g, num_tokens)) {
      DropLast(g, &on_host, &swap_pools_[static_cast<size_t>(g)], last_step);
    }
  }
}

void BlockManager::DropSwapped(SwappedTables* swapped, uint64_t last_step) {
  for (size_t g = 0; g < swapped->tables.size(); ++g) {
    const BlockTable& on_host = swapped->tables[g];
    for (int32_t index = on_host.num_entries() - 1; index >= on_host.num_dropped; --index) {
      swap_pools_[g].Unref(on_host.blocks[static_cast<size_t>(index)], last_step);
    }
  }
  swapped->tables.clear();
}

}  // namespace cachalot
