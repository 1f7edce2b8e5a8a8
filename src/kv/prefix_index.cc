#include "kv/prefix_index.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.h"

namespace cachalot {
namespace {

// Longer than any; so that the sum with a time stays in range.
constexpr int64_t kMaxTtlUs = std::numeric_limits<int64_t>::max() / 4;
constexpr int64_t kPinnedRank = std::numeric_limits<int64_t>::max();

}  // namespace

PrefixIndex::PrefixIndex(int32_t num_blocks, std::unique_ptr<EvictionPolicy> policy, int32_t tenant_floor)
    : entries_(static_cast<size_t>(num_blocks)),
      buckets_(std::bit_ceil(static_cast<size_t>(std::max(1, num_blocks))), -1),
      policy_(std::move(policy)),
      floors_(num_blocks, tenant_floor),
      below_(num_blocks),
      above_(num_blocks),
      expiry_(num_blocks) {}

void PrefixIndex::SetTime(int64_t now_us) {
  now_us_ = now_us;
  policy_->SetTime(now_us);
}

int32_t PrefixIndex::Find(const BlockKey& key) const {
  int32_t block = buckets_[key.low & (buckets_.size() - 1)];
  while (block >= 0 && entries_[static_cast<size_t>(block)].key != key) {
    block = entries_[static_cast<size_t>(block)].next;
  }
  return block;
}

bool PrefixIndex::Insert(int32_t block, const BlockKey& key, int32_t parent, const KeepTerms& terms) {
  CHECK(!At(block).cached) << "block " << block << " is cached already";
  const int32_t known = Find(key);
  if (known >= 0) {
    if (At(block).stands_for == known && At(block).key == key) return false;  // a fork says so once more
    At(block) = {.key = key, .stands_for = known, .forgotten = At(block).forgotten};
    Reference(known, terms);
    return false;
  }
  if (At(block).forgotten) parent = -1;
  int32_t& bucket = Bucket(key);
  At(block) = {.key = key,
               .next = bucket,
               .parent = parent,
               .priority = terms.priority,
               .tenant = terms.tenant,
               .ttl_us = std::min(terms.ttl_us, kMaxTtlUs),
               .last_use_us = now_us_,
               .cached = true,
               .forgotten = At(block).forgotten};
  bucket = block;
  ++num_cached_;
  if (parent >= 0) {
    CHECK(At(parent).cached && !At(parent).idle)
        << "block " << parent << " in front of " << block << " is not held";
    ++At(parent).num_children;
  }
  policy_->Insert(block, key.low, terms.reuse_class);
  floors_.Add(terms.tenant);
  const int32_t aside = floors_.OldestAside(terms.tenant);
  if (aside >= 0 && !floors_.IsProtected(terms.tenant)) {
    floors_.TakeBack(aside, terms.tenant);
    policy_->AddCandidate(aside);
    ++num_of_policy_;
  }
  return true;
}

void PrefixIndex::Reference(int32_t block, const KeepTerms& terms) {
  Entry& entry = At(block);
  CHECK(entry.cached) << "block " << block;
  const bool candidate = IsCandidate(block);
  if (candidate) RemoveCandidate(block);
  entry.priority = std::max(entry.priority, terms.priority);
  if (entry.ttl_us != 0) {
    entry.ttl_us = terms.ttl_us == 0 ? 0 : std::max(entry.ttl_us, std::min(terms.ttl_us, kMaxTtlUs));
  }
  entry.last_use_us = now_us_;
  if (terms.again)
    policy_->Release(block);
  else
    policy_->Reference(block);
  if (candidate) AddCandidate(block);
}

void PrefixIndex::Release(int32_t block) {
  if (!At(block).cached) {
    const Entry duplicate = At(block);
    At(block) = {};
    if (duplicate.stands_for < 0) return;
    block = duplicate.stands_for;
    if (!At(block).cached || At(block).key != duplicate.key) return;  // it has gone meanwhile
  }
  const bool candidate = IsCandidate(block);
  if (candidate) RemoveCandidate(block);
  At(block).last_use_us = now_us_;
  policy_->Release(block);
  if (candidate) AddCandidate(block);
}

void PrefixIndex::SetPinned(int32_t block, bool pinned) {
  Entry& entry = At(block);
  CHECK(entry.cached) << "block " << block;
  if (entry.pinned == pinned) return;
  const bool candidate = IsCandidate(block);
  if (candidate) RemoveCandidate(block);
  entry.pinned = pinned;
  num_pinned_ += pinned ? 1 : -1;
  if (candidate) AddCandidate(block);
}

void PrefixIndex::SetIdle(int32_t block) {
  CHECK(At(block).cached && !At(block).idle) << "block " << block;
  At(block).idle = true;
  ++num_idle_;
  if (At(block).num_children == 0) AddCandidate(block);
}

void PrefixIndex::SetBusy(int32_t block) {
  CHECK(At(block).idle) << "block " << block;
  if (At(block).num_children == 0) RemoveCandidate(block);
  At(block).idle = false;
  --num_idle_;
}

void PrefixIndex::AddCandidate(int32_t block) {
  const Entry& entry = At(block);
  if (entry.pinned) {
    above_.Insert(block, {kPinnedRank, ++clock_});
    return;
  }
  if (entry.ttl_us != 0) expiry_.Insert(block, entry.last_use_us + entry.ttl_us);
  if (entry.priority == 0) {
    ++num_of_policy_;
    policy_->AddCandidate(block);
  } else {
    (entry.priority < 0 ? below_ : above_).Insert(block, {entry.priority, ++clock_});
  }
}

void PrefixIndex::RemoveCandidate(int32_t block) {
  if (expiry_.Contains(block)) expiry_.Remove(block);
  if (below_.Contains(block)) {
    below_.Remove(block);
  } else if (above_.Contains(block)) {
    above_.Remove(block);
  } else if (floors_.IsAside(block)) {
    floors_.TakeBack(block, At(block).tenant);
  } else {
    --num_of_policy_;
    policy_->RemoveCandidate(block);
  }
}

int32_t PrefixIndex::Victim() {
  if (!expiry_.empty()) {
    const int32_t block = expiry_.Least();
    if (At(block).last_use_us + At(block).ttl_us <= now_us_) return block;
  }
  if (!below_.empty()) return below_.Least();
  while (num_of_policy_ > 0) {
    const int32_t block = policy_->Victim();
    if (!floors_.IsProtected(At(block).tenant)) return block;
    policy_->RemoveCandidate(block);
    --num_of_policy_;
    floors_.PutAside(block, At(block).tenant);
  }
  const int32_t aside = floors_.Yield();
  return aside >= 0 ? aside : above_.Least();
}

int32_t PrefixIndex::Evict() {
  const int32_t block = Victim();
  const int32_t parent = At(block).parent;
  SetBusy(block);
  policy_->Erase(block, /*evicted=*/true);
  Unlink(block);
  ++num_evictions_;
  if (parent >= 0 && --At(parent).num_children == 0 && At(parent).idle) AddCandidate(parent);
  return block;
}

void PrefixIndex::Unlink(int32_t block) {
  int32_t* link = &Bucket(At(block).key);
  while (*link != block) link = &At(*link).next;
  *link = At(block).next;
  num_pinned_ -= At(block).pinned ? 1 : 0;
  floors_.Remove(At(block).tenant);
  At(block) = {};
  --num_cached_;
}

void PrefixIndex::Clear() {
  for (int32_t block = 0; block < static_cast<int32_t>(entries_.size()); ++block) {
    if (!At(block).cached) continue;
    if (IsCandidate(block)) RemoveCandidate(block);
    policy_->Erase(block, /*evicted=*/false);
  }
  for (Entry& entry : entries_) {
    const bool in_use = (entry.cached && !entry.idle) || entry.forgotten;
    entry = {};
    entry.forgotten = in_use;
  }
  std::fill(buckets_.begin(), buckets_.end(), -1);
  num_cached_ = 0;
  num_idle_ = 0;
  num_pinned_ = 0;
  floors_.Clear();
}

}  // namespace cachalot
