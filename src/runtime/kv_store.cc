#include "runtime/kv_store.h"

#include <algorithm>
#include <cstring>

namespace cachalot {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Every sequence may leave its last block partly empty.
int64_t NumBlocks(const KvStoreOptions& options) {
  return CeilDiv(options.capacity_tokens, options.block_tokens) + options.max_seqs;
}

int64_t TableStride(const KvStoreOptions& options) { return CeilDiv(options.max_context, options.block_tokens); }

}  // namespace

int64_t KvStore::PlanBytes(const std::vector<KvGroupSpec>& groups, const KvStoreOptions& options) {
  int64_t bytes = 0;
  for (const auto& group : groups) {
    bytes += NumBlocks(options) * group.BlockBytes(options.dtype, options.block_tokens);
    bytes += options.max_seqs * TableStride(options) * static_cast<int64_t>(sizeof(int32_t));
  }
  return bytes;
}

Result<KvStore> KvStore::Allocate(const std::vector<KvGroupSpec>& groups, const KvStoreOptions& options) {
  KvStore store;
  const int64_t num_blocks = NumBlocks(options);
  if (num_blocks > INT32_MAX) return InvalidArgument("{} KV blocks, the limit is {}", num_blocks, INT32_MAX);
  for (const auto& group : groups) {
    const int64_t block_bytes = group.BlockBytes(options.dtype, options.block_tokens);
    auto pool = Buffer::Allocate(num_blocks * block_bytes);
    if (!pool.ok()) return pool.status().WithContext("KV cache '" + group.name + "'");
    store.pools_.push_back(std::move(pool).value());
    store.tables_.emplace_back(static_cast<size_t>(options.max_seqs * TableStride(options)), 0);
    store.infos_.push_back({.name = group.name,
                            .block_tokens = options.block_tokens,
                            .num_blocks = static_cast<int32_t>(num_blocks),
                            .window = group.window,
                            .block_bytes = block_bytes});
    store.bindings_.push_back({.pool = store.pools_.back().data(),
                               .dtype = options.dtype,
                               .block_tokens = options.block_tokens,
                               .block_tables = store.tables_.back().data(),
                               .table_stride = TableStride(options)});
  }
  return store;
}

void KvStore::Write(const BlockWrite& write) {
  const KvBinding& binding = bindings_[static_cast<size_t>(write.group)];
  DCHECK(write.index >= 0 && write.index < binding.table_stride);
  tables_[static_cast<size_t>(write.group)][static_cast<size_t>(write.slot * binding.table_stride + write.index)] = write.block_id;
}

void KvStore::Copy(const BlockCopy& copy) {
  const int64_t bytes = infos_[static_cast<size_t>(copy.group)].block_bytes;
  std::byte* pool = pools_[static_cast<size_t>(copy.group)].data();
  std::memcpy(pool + copy.to_block * bytes, pool + copy.from_block * bytes, static_cast<size_t>(bytes));
}

}  // namespace cachalot
