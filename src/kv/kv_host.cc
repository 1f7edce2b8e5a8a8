#include "kv/kv_host.h"

#include <algorithm>

#include "base/check.h"

namespace cachalot {

KvHost::KvHost(std::vector<KvGroupInfo> groups, std::span<std::byte> memory, const MakeEvictionPolicy& make_policy)
    : groups_(std::move(groups)), memory_(memory) {
  CHECK(SumBytes(groups_) == size_bytes()) << size_bytes() << " bytes for " << SumBytes(groups_);
  std::byte* begin = memory.data();
  for (const KvGroupInfo& group : groups_) {
    pools_.emplace_back(group.num_blocks, std::make_unique<PrefixIndex>(group.num_blocks, make_policy(group.num_blocks)));
    begins_.push_back(begin);
    begin += group.num_blocks * group.block_bytes;
  }
}

int64_t KvHost::SumBytes(std::span<const KvGroupInfo> groups) {
  int64_t bytes = 0;
  for (const KvGroupInfo& group : groups) bytes += group.num_blocks * group.block_bytes;
  return bytes;
}

std::vector<KvGroupInfo> KvHost::GroupsOf(std::vector<KvGroupInfo> groups, int64_t size_bytes) {
  const double share = static_cast<double>(size_bytes) / static_cast<double>(std::max<int64_t>(1, SumBytes(groups)));
  for (KvGroupInfo& group : groups) group.num_blocks = std::max(1, static_cast<int32_t>(std::min(share * group.num_blocks, 1e9)));
  return groups;
}

std::span<std::byte> KvHost::Bytes(int32_t group, int32_t block) const {
  const auto g = static_cast<size_t>(group);
  return {begins_[g] + block * groups_[g].block_bytes, static_cast<size_t>(groups_[g].block_bytes)};
}

int32_t KvHost::Take(int32_t group) {
  BlockPool& pool = pools_[static_cast<size_t>(group)];
  return pool.CanAllocate() ? pool.Allocate() : kNoBlock;
}

void KvHost::Fill(int32_t group, int32_t block, const TierBlock& what, const KeepTerms& terms) {
  BlockPool& pool = pools_[static_cast<size_t>(group)];
  // Where the one in front is not here, or somewhere else, this one goes on its own.
  const int32_t parent = what.has_parent ? pool.index()->Find(what.parent) : kNoBlock;
  KeepTerms again = terms;
  again.again = true;
  if (parent != kNoBlock) pool.RefCached(parent, again);
  pool.index()->Insert(block, what.key, parent, terms);
  if (parent != kNoBlock) pool.Unref(parent, 0);
}

void KvHost::Forget() {
  for (BlockPool& pool : pools_) pool.ForgetCached();
}

void KvHost::SetTime(int64_t now_us) {
  for (BlockPool& pool : pools_) pool.index()->SetTime(now_us);
}

int64_t KvHost::num_cached() const {
  int64_t count = 0;
  for (const BlockPool& pool : pools_) count += pool.index()->num_cached();
  return count;
}

int64_t KvHost::cached_bytes() const {
  int64_t bytes = 0;
  for (size_t g = 0; g < pools_.size(); ++g) bytes += pools_[g].index()->num_cached() * groups_[g].block_bytes;
  return bytes;
}

int64_t KvHost::num_evictions() const {
  int64_t count = 0;
  for (const BlockPool& pool : pools_) count += pool.index()->num_evictions();
  return count;
}

}  // namespace cachalot
