#include "kv/block_manager.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace cachalot {
namespace {

int32_t CeilDiv(int64_t a, int64_t b) {
  return static_cast<int32_t>((a + b - 1) / b);
}

}  // namespace

BlockManager::BlockManager(std::vector<KvGroupInfo> groups, int32_t num_slots, int32_t max_seq_tokens,
                           MakeEvictionPolicy make_policy, int32_t tenant_floor_percent)
    : groups_(std::move(groups)), max_seq_tokens_(max_seq_tokens) {
  pools_.reserve(groups_.size());
  for (const KvGroupInfo& group : groups_) {
    CHECK(group.block_tokens > 0 && group.num_blocks >= 0 && group.window >= 0) << group.name;
    const bool open_end = group.end_token == std::numeric_limits<int32_t>::max();
    CHECK((group.first_token == 0 && open_end) ||
          (group.window == 0 && group.first_token >= 0 && group.first_token % group.block_tokens == 0 &&
           (open_end || group.end_token % group.block_tokens == 0)))
        << group.name << " keeps " << group.first_token << " to " << group.end_token;
    page_tokens_ = std::lcm(page_tokens_, group.block_tokens);
    std::unique_ptr<PrefixIndex> index;
    if (make_policy != nullptr) {
      index = std::make_unique<PrefixIndex>(
          group.num_blocks, make_policy(group.num_blocks),
          static_cast<int32_t>(int64_t{group.num_blocks} * tenant_floor_percent / 100));
    }
    pools_.emplace_back(group.num_blocks, std::move(index));
    swap_pools_.emplace_back(group.num_swap_blocks);
  }
  tables_.resize(static_cast<size_t>(num_slots) * groups_.size());
  for (size_t i = 0; i < tables_.size(); ++i) {
    const KvGroupInfo& group = groups_[i % groups_.size()];
    // Entries that fell out of a window stay in the table, so there the pool's size is no bound.
    const int32_t longest = CeilDiv(max_seq_tokens, group.block_tokens);
    tables_[i].blocks.reserve(static_cast<size_t>(
        group.window > 0 || group.first_token > 0 ? longest : std::min(longest, group.num_blocks)));
  }
}

const BlockTable& BlockManager::table(int32_t slot, int32_t group) const {
  return tables_[static_cast<size_t>(slot) * groups_.size() + static_cast<size_t>(group)];
}

BlockTable& BlockManager::Table(int32_t slot, int32_t group) {
  return tables_[static_cast<size_t>(slot) * groups_.size() + static_cast<size_t>(group)];
}

// Whoever writes to a block is its only holder, and nobody finds it: a fork may hold the beginning of a block that was
// published since, and be the last that does.
bool BlockManager::NeedsCopy(const BlockTable& table, int32_t g, int32_t num_tokens) const {
  if (num_tokens <= table.num_tokens || table.num_tokens % group(g).block_tokens == 0) return false;
  if (table.num_held() == 0 || table.num_tokens >= group(g).end_token) return false;
  const int32_t last = table.blocks.back();
  return pool(g).refcount(last) > 1 || (pool(g).index() != nullptr && pool(g).index()->Contains(last));
}

KvFit BlockManager::CanAllocate(int32_t slot, int32_t num_tokens) const {
  KvFit fit = KvFit::kNow;
  for (int32_t g = 0; g < num_groups(); ++g) {
    const BlockTable& held = table(slot, g);
    const int32_t entries = std::max(held.num_entries(), group(g).first_token / group(g).block_tokens);
    const int32_t wanted = NumEntries(g, num_tokens) - entries + (NeedsCopy(held, g, num_tokens) ? 1 : 0);
    if (wanted <= pool(g).num_free()) continue;
    if (wanted > pool(g).num_free() + pool(g).num_pending()) return KvFit::kNever;
    fit = KvFit::kLater;
  }
  return fit;
}

bool BlockManager::GrowInPlace(int32_t slot, int32_t num_tokens) {
  BlockTable* tables = &tables_[static_cast<size_t>(slot) * groups_.size()];
  for (size_t g = 0; g < groups_.size(); ++g) {
    const KvGroupInfo& group = groups_[g];
    if (tables[g].may_share_last && tables[g].num_tokens < group.end_token) return false;
    if (std::min(num_tokens, group.end_token) > int64_t{tables[g].num_entries()} * group.block_tokens) return false;
  }
  for (size_t g = 0; g < groups_.size(); ++g) tables[g].num_tokens = std::max(tables[g].num_tokens, num_tokens);
  return true;
}

void BlockManager::Allocate(int32_t slot, int32_t num_tokens, uint64_t step_id,
                            std::vector<BlockWrite>* writes, std::vector<BlockCopy>* copies) {
  CHECK(num_tokens <= max_seq_tokens_)
      << num_tokens << " tokens in a sequence of at most " << max_seq_tokens_;
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& held = Table(slot, g);
    BlockPool& pool = pools_[static_cast<size_t>(g)];
    if (NeedsCopy(held, g, num_tokens)) {
      const int32_t shared = held.blocks.back();
      const int32_t copy = pool.Allocate();
      held.blocks.back() = copy;
      copies->push_back({.group = g, .from_block = shared, .to_block = copy});
      // A fork may have said otherwise in this very step: an entry is written once.
      const auto forked = std::find_if(writes->begin(), writes->end(), [&](const BlockWrite& write) {
        return write.slot == slot && write.group == g && write.index == held.num_entries() - 1;
      });
      const BlockWrite write{.slot = slot, .group = g, .index = held.num_entries() - 1, .block_id = copy};
      if (forked != writes->end())
        *forked = write;
      else
        writes->push_back(write);
      pool.Unref(shared, step_id);  // this step still reads it
    }
    const int32_t num_entries = NumEntries(g, num_tokens);
    for (int32_t index = held.num_entries(); index < num_entries; ++index) {
      if (!group(g).Keeps(index)) {
        held.blocks.push_back(kNoBlock);
        ++held.num_dropped;
        continue;
      }
      const int32_t block = pool.Allocate();
      held.blocks.push_back(block);
      held.may_share_last = false;
      writes->push_back({.slot = slot, .group = g, .index = index, .block_id = block});
    }
    held.num_tokens = std::max(held.num_tokens, num_tokens);
  }
}

void BlockManager::Fork(int32_t from, int32_t to, int32_t num_tokens, std::vector<BlockWrite>* writes) {
  CHECK(CanFork(from, num_tokens)) << num_tokens << " tokens of slot " << from;
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& parent = Table(from, g);
    BlockTable& child = Table(to, g);
    CHECK(child.blocks.empty()) << "fork into slot " << to << ", which holds blocks";
    child.num_tokens = num_tokens;
    parent.may_share_last = child.may_share_last = true;
    child.num_dropped = FirstEntry(g, num_tokens);
    child.blocks.assign(static_cast<size_t>(child.num_dropped), kNoBlock);
    for (int32_t index = child.num_dropped; index < NumEntries(g, num_tokens); ++index) {
      const int32_t block = parent.blocks[static_cast<size_t>(index)];
      child.blocks.push_back(block);
      pools_[static_cast<size_t>(g)].Ref(block);
      writes->push_back({.slot = to, .group = g, .index = index, .block_id = block});
    }
  }
}

bool BlockManager::CanFork(int32_t from, int32_t num_tokens) const {
  for (int32_t g = 0; g < num_groups(); ++g) {
    const BlockTable& parent = table(from, g);
    if (parent.num_tokens < num_tokens) return false;
    if (parent.num_dropped > std::max(FirstRead(g, num_tokens), group(g).first_token) / group(g).block_tokens) return false;
  }
  return true;
}

int32_t BlockManager::CountForked(int32_t g, int32_t num_tokens) const {
  const int32_t full = std::min(num_tokens, group(g).end_token) / group(g).block_tokens;
  return std::max(0, full - FirstEntry(g, num_tokens));
}

void BlockManager::Truncate(int32_t slot, int32_t num_tokens, uint64_t last_step) {
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& held = Table(slot, g);
    CHECK(num_tokens <= held.num_tokens) << num_tokens << " of " << held.num_tokens << " tokens in slot " << slot;
    held.num_tokens = num_tokens;
    held.may_share_last = true;
    const int32_t num_entries = NumEntries(g, num_tokens);
    while (held.num_entries() > num_entries) DropLast(g, &held, &pools_[static_cast<size_t>(g)], last_step);
  }
}

void BlockManager::DropLast(int32_t g, BlockTable* table, BlockPool* pool, uint64_t last_step) const {
  if (table->num_held() > 0) {
    pool->Unref(table->blocks.back(), last_step);
  } else {
    CHECK(!group(g).Keeps(table->num_entries() - 1)) << "a sequence goes back behind the window of " << group(g).name;
    --table->num_dropped;
  }
  table->blocks.pop_back();
}

void BlockManager::Free(int32_t slot, uint64_t last_step) {
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& held = Table(slot, g);
    // Backwards, so that the stack of free blocks gives them out again in the order in which they lay.
    for (int32_t index = held.num_entries() - 1; index >= held.num_dropped; --index) {
      pools_[static_cast<size_t>(g)].Unref(held.blocks[static_cast<size_t>(index)], last_step);
    }
    held.blocks.clear();
    held.num_dropped = 0;
    held.num_tokens = 0;
    held.may_share_last = false;
  }
}

// A token at `position` reads the `window` positions that end with itself.
int32_t BlockManager::FirstRead(int32_t g, int32_t position) const {
  return group(g).window > 0 ? std::max(0, position - group(g).window + 1) : 0;
}

int32_t BlockManager::NumEntries(int32_t g, int32_t num_tokens) const {
  return CeilDiv(std::min(num_tokens, group(g).end_token), group(g).block_tokens);
}

int32_t BlockManager::FirstEntry(int32_t g, int32_t num_tokens) const {
  const int32_t first = std::max(FirstRead(g, num_tokens), group(g).first_token);
  return std::min(first / group(g).block_tokens, NumEntries(g, num_tokens));
}

void BlockManager::DropBehindWindow(int32_t slot, int32_t num_computed, uint64_t last_step) {
  for (int32_t g = 0; g < num_groups(); ++g) {
    if (group(g).window <= 0) continue;
    const int32_t first_read = FirstRead(g, num_computed);
    BlockTable& held = Table(slot, g);
    for (const int32_t end = first_read / group(g).block_tokens; held.num_dropped < end; ++held.num_dropped) {
      int32_t& block = held.blocks[static_cast<size_t>(held.num_dropped)];
      pools_[static_cast<size_t>(g)].Unref(block, last_step);
      block = kNoBlock;
    }
  }
}

void BlockManager::Release(uint64_t completed_step) {
  for (BlockPool& pool : pools_) pool.Release(completed_step);
  for (BlockPool& pool : swap_pools_) pool.Release(completed_step);
}

int32_t BlockManager::PeakBlocks(int32_t g, int32_t num_tokens, int32_t max_q_len) const {
  const int32_t all = NumEntries(g, num_tokens);
  if (group(g).window <= 0) return all - FirstEntry(g, num_tokens);
  // A step reads and writes window - 1 + q_len positions in a row, the first at worst at the end of its
  // block.
  const int64_t span = int64_t{group(g).window} - 1 + max_q_len;
  return std::min(all, CeilDiv(span - 1, group(g).block_tokens) + 1);
}

KvSequenceLimits BlockManager::SequenceLimits(int32_t max_q_len) const {
  KvSequenceLimits limits{.max_tokens = max_seq_tokens_, .max_q_len = max_q_len};
  for (const KvGroupInfo& group : groups_) {
    const int64_t pool_tokens = group.first_token + int64_t{group.num_blocks} * group.block_tokens;
    if (pool_tokens >= std::min(max_seq_tokens_, group.end_token)) continue;
    // PeakBlocks solved for max_q_len: the longest step with which a window rolls on within the pool.
    const int64_t rolling_q_len = pool_tokens - group.block_tokens + 2 - group.window;
    if (group.window > 0 && rolling_q_len >= 1) {
      limits.max_q_len = static_cast<int32_t>(std::min<int64_t>(limits.max_q_len, rolling_q_len));
    } else {
      limits.max_tokens = static_cast<int32_t>(std::min<int64_t>(limits.max_tokens, pool_tokens));
    }
  }
  return limits;
}

KvGroupUsage BlockManager::Usage(int32_t g) const {
  KvGroupUsage usage{.num_blocks = pool(g).num_blocks(),
                     .num_used = pool(g).num_used(),
                     .num_pending = pool(g).num_pending(),
                     .num_cached = pool(g).num_cached_free(),
                     .num_pinned = pool(g).index() == nullptr ? 0 : pool(g).index()->num_pinned()};
  for (size_t i = static_cast<size_t>(g); i < tables_.size(); i += groups_.size()) {
    const int32_t num_tokens = std::min(tables_[i].num_tokens, group(g).end_token);
    usage.unused_tokens += int64_t{tables_[i].num_entries()} * group(g).block_tokens - num_tokens;
  }
  return usage;
}

}  // namespace cachalot
