// BlockManager: the prefix cache over all groups.
#include <algorithm>

#include "base/check.h"
#include "kv/block_manager.h"

namespace cachalot {

template <typename Has>
bool BlockManager::HasPage(int32_t g, std::span<const BlockKey> page_keys, int32_t page, const Has& has) const {
  const int32_t per_page = page_tokens_ / group(g).block_tokens;
  for (int32_t i = per_page - 1; i >= 0; --i) {
    if (group(g).Keeps(page * per_page + i) && !has(g, KeyInPage(page_keys[static_cast<size_t>(page)], i))) return false;
  }
  return true;
}

template <typename Has>
int32_t BlockManager::LongestPrefix(std::span<const BlockKey> page_keys, int32_t max_tokens, const Has& has) const {
  if (groups_.empty() || pool(0).index() == nullptr) return 0;
  auto num_pages = static_cast<int32_t>(
      std::min<size_t>(page_keys.size(), static_cast<size_t>(max_tokens / page_tokens_)));
  for (int32_t g = 0; g < num_groups(); ++g) {
    if (group(g).window > 0) continue;
    int32_t found = 0;
    while (found < num_pages && HasPage(g, page_keys, found, has)) ++found;
    num_pages = found;
  }
  // Of a windowed group only the last pages are needed: shorten until it has them. A prefix that ends before
  // the missing page needs others, so each page is looked up once a group and round.
  for (bool again = true; again && num_pages > 0;) {
    again = false;
    for (int32_t g = 0; g < num_groups() && num_pages > 0; ++g) {
      if (group(g).window <= 0) continue;
      const int32_t first = FirstRead(g, num_pages * page_tokens_) / page_tokens_;
      int32_t page = num_pages - 1;
      while (page >= first && HasPage(g, page_keys, page, has)) --page;
      if (page < first) continue;
      num_pages = page;
      again = true;
    }
  }
  return num_pages * page_tokens_;
}

int32_t BlockManager::FindPrefix(std::span<const BlockKey> page_keys, int32_t max_tokens) const {
  return LongestPrefix(page_keys, max_tokens,
                       [this](int32_t g, const BlockKey& key) { return pool(g).index()->Find(key) >= 0; });
}

// Of the block at entry `at` of a table. Windowed blocks are let go of from the front, so there nothing stands on another.
TierBlock BlockManager::NameBlock(int32_t g, std::span<const BlockKey> page_keys, int32_t at) const {
  const int32_t per_page = page_tokens_ / group(g).block_tokens;
  const auto key_at = [&](int32_t i) { return KeyInPage(page_keys[static_cast<size_t>(i / per_page)], i % per_page); };
  const bool has_parent = group(g).window == 0 && at > 0 && group(g).Keeps(at - 1);
  return {.group = g, .key = key_at(at), .parent = has_parent ? key_at(at - 1) : BlockKey{}, .has_parent = has_parent};
}

int32_t BlockManager::FindPrefixWith(std::span<const BlockKey> page_keys, int32_t max_tokens, const ElsewhereHas& elsewhere) const {
  return LongestPrefix(page_keys, max_tokens, [&](int32_t g, const BlockKey& key) {
    return pool(g).index()->Find(key) >= 0 || elsewhere(g, key);
  });
}

void BlockManager::ListPrefix(std::span<const BlockKey> page_keys, int32_t num_tokens, std::vector<TierBlock>* blocks) const {
  blocks->clear();
  for (int32_t page = 0; page < num_tokens / page_tokens_; ++page) {
    for (int32_t g = 0; g < num_groups(); ++g) {
      const int32_t per_page = page_tokens_ / group(g).block_tokens;
      const int32_t first = std::max(page * per_page, FirstRead(g, num_tokens) / group(g).block_tokens);
      for (int32_t at = first; at < (page + 1) * per_page; ++at) {
        if (group(g).Keeps(at)) blocks->push_back(NameBlock(g, page_keys, at));
      }
    }
  }
}

int32_t BlockManager::Restore(const TierBlock& wanted, const KeepTerms& terms) {
  BlockPool& pool = pools_[static_cast<size_t>(wanted.group)];
  if (pool.index() == nullptr || pool.index()->Find(wanted.key) >= 0 || !pool.CanAllocate()) return kNoBlock;
  int32_t parent = kNoBlock;
  if (wanted.has_parent) {
    parent = pool.index()->Find(wanted.parent);
    if (parent == kNoBlock) return kNoBlock;
    KeepTerms again = terms;
    again.again = true;
    pool.RefCached(parent, again);
    if (!pool.CanAllocate()) {  // it was the last
      pool.Unref(parent, 0);
      return kNoBlock;
    }
  }
  const int32_t block = pool.Allocate();
  pool.index()->Insert(block, wanted.key, parent, terms);
  pool.Unref(block, 0);
  if (parent != kNoBlock) pool.Unref(parent, 0);
  return block;
}

int32_t BlockManager::CountHeld(int32_t g, std::span<const BlockKey> page_keys, int32_t num_tokens) const {
  const PrefixIndex* index = pool(g).index();
  const int32_t per_page = page_tokens_ / group(g).block_tokens;
  int32_t count = 0;
  for (int32_t i = FirstEntry(g, num_tokens); i < NumEntries(g, num_tokens); ++i) {
    const int32_t block = index->Find(KeyInPage(page_keys[static_cast<size_t>(i / per_page)], i % per_page));
    if (!index->IsIdle(block)) ++count;
  }
  return count;
}

void BlockManager::TakePrefix(int32_t slot, std::span<const BlockKey> page_keys, int32_t num_tokens,
                              std::vector<BlockWrite>* writes, const KeepTerms& terms) {
  CHECK(num_tokens % page_tokens_ == 0) << num_tokens << " tokens are no number of pages of " << page_tokens_;
  for (int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& held = Table(slot, g);
    CHECK(held.blocks.empty()) << "slot " << slot << " holds blocks";
    BlockPool& pool = pools_[static_cast<size_t>(g)];
    const int32_t per_page = page_tokens_ / group(g).block_tokens;
    held.num_tokens = num_tokens;
    held.num_dropped = FirstEntry(g, num_tokens);
    held.blocks.assign(static_cast<size_t>(held.num_dropped), kNoBlock);
    for (int32_t i = held.num_dropped; i < NumEntries(g, num_tokens); ++i) {
      const int32_t block =
          pool.index()->Find(KeyInPage(page_keys[static_cast<size_t>(i / per_page)], i % per_page));
      CHECK(block >= 0) << "group " << g << " does not have block " << i << " of the prefix";
      pool.RefCached(block, terms);
      held.blocks.push_back(block);
      writes->push_back({.slot = slot, .group = g, .index = i, .block_id = block});
    }
  }
}

void BlockManager::Publish(int32_t slot, std::span<const BlockKey> page_keys, size_t first_page,
                           const KeepTerms& terms) {
  for (int32_t g = 0; g < num_groups(); ++g) {
    const BlockTable& held = table(slot, g);
    PrefixIndex* index = pools_[static_cast<size_t>(g)].index();
    const int32_t per_page = page_tokens_ / group(g).block_tokens;
    for (size_t page = first_page; page < page_keys.size(); ++page) {
      for (int32_t i = 0; i < per_page; ++i) {
        const size_t at = page * static_cast<size_t>(per_page) + static_cast<size_t>(i);
        const int32_t block = at < held.blocks.size() ? held.blocks[at] : kNoBlock;
        if (block == kNoBlock || index->Contains(block)) continue;
        // Windowed blocks are let go of from the front, so there nothing stands on another.
        int32_t parent = group(g).window > 0 || at == 0 ? kNoBlock : held.blocks[at - 1];
        if (parent != kNoBlock && !index->Contains(parent)) parent = kNoBlock;
        const bool inserted = index->Insert(block, KeyInPage(page_keys[page], i), parent, terms);
        if (inserted && published_ != nullptr) {
          published_->push_back({.what = NameBlock(g, page_keys, static_cast<int32_t>(at)), .terms = terms});
        }
      }
    }
  }
}

int32_t BlockManager::SetPinned(std::span<const BlockKey> page_keys, bool pinned) {
  int32_t num_tokens = 0;
  for (int32_t page = 0; page < static_cast<int32_t>(page_keys.size()); ++page) {
    for (int32_t g = 0; g < num_groups(); ++g) {
      const PrefixIndex* index = pool(g).index();
      const int32_t per_page = page_tokens_ / group(g).block_tokens;
      if (index == nullptr) return 0;
      if (!group(g).Keeps(page * per_page) && !group(g).Keeps((page + 1) * per_page - 1)) continue;
      if (pinned && index->num_pinned() + per_page > group(g).num_blocks / 2) return num_tokens;
      // Of a windowed group some may have gone, and only the last are ever read.
      if (pinned && group(g).window == 0 &&
          !HasPage(g, page_keys, page, [&](int32_t, const BlockKey& key) { return index->Find(key) >= 0; })) {
        return num_tokens;
      }
    }
    for (int32_t g = 0; g < num_groups(); ++g) {
      PrefixIndex* index = pools_[static_cast<size_t>(g)].index();
      for (int32_t i = 0; i < page_tokens_ / group(g).block_tokens; ++i) {
        const int32_t block = index->Find(KeyInPage(page_keys[static_cast<size_t>(page)], i));
        if (block != kNoBlock) index->SetPinned(block, pinned);
      }
    }
    num_tokens += page_tokens_;
  }
  return num_tokens;
}

void BlockManager::SetTime(int64_t now_us) {
  for (BlockPool& pool : pools_) {
    if (pool.index() != nullptr) pool.index()->SetTime(now_us);
  }
}

void BlockManager::ForgetCached() {
  for (BlockPool& pool : pools_) pool.ForgetCached();
}

int64_t BlockManager::num_evictions() const {
  int64_t count = 0;
  for (const BlockPool& pool : pools_) count += pool.index() == nullptr ? 0 : pool.index()->num_evictions();
  return count;
}

}  // namespace cachalot
