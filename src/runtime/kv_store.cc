#include "runtime/kv_store.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace cachalot {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of a group of sinks: for every sequence, and for one that is cached in every so many tokens. Where there are more
// beginnings than that, the cache finds those used last.
constexpr int64_t kTokensBehindSinks = 1024;

bool IsOfSinks(const KvGroupSpec& group) { return group.end_token < std::numeric_limits<int32_t>::max(); }

int64_t NumSinkBlocks(const KvGroupSpec& group, int64_t num_seqs, const KvStoreOptions& options) {
  return num_seqs * CeilDiv(group.end_token, options.block_tokens);
}

// Every sequence may leave its last block partly empty.
int64_t NumBlocks(const KvGroupSpec& group, const KvStoreOptions& options) {
  const int64_t all = CeilDiv(options.capacity_tokens, options.block_tokens) + options.max_seqs;
  if (!IsOfSinks(group)) return all;
  return std::min(all, NumSinkBlocks(group, options.max_seqs + CeilDiv(options.capacity_tokens, kTokensBehindSinks), options));
}

int64_t NumSwapBlocks(const KvGroupSpec& group, const KvStoreOptions& options) {
  const int64_t all = CeilDiv(options.swap_tokens, options.block_tokens);
  if (!IsOfSinks(group)) return all;
  return std::min(all, NumSinkBlocks(group, options.max_seqs + CeilDiv(options.swap_tokens, kTokensBehindSinks), options));
}

int64_t TableStride(const KvStoreOptions& options) { return CeilDiv(options.max_context, options.block_tokens); }

}  // namespace

int64_t KvStore::PlanBytes(const std::vector<KvGroupSpec>& groups, const KvStoreOptions& options, DeviceType home) {
  int64_t bytes = 0;
  for (const auto& group : groups) {
    const int64_t block_bytes = group.BlockBytes(options.dtype, options.block_tokens);
    if (home == DeviceType::kCpu) bytes += NumSwapBlocks(group, options) * block_bytes;  // of every group
    if (group.home != home) continue;
    bytes += NumBlocks(group, options) * block_bytes;
    bytes += options.max_seqs * TableStride(options) * static_cast<int64_t>(sizeof(int32_t));
  }
  return bytes;
}

Result<KvStore> KvStore::Allocate(const std::vector<KvGroupSpec>& groups, const KvStoreOptions& options) {
  KvStore store;
  store.cuda_ = options.cuda;
  for (const auto& group : groups) {
    const int64_t num_blocks = NumBlocks(group, options);
    if (num_blocks > INT32_MAX) return InvalidArgument("{} KV blocks, the limit is {}", num_blocks, INT32_MAX);
    const int64_t block_bytes = group.BlockBytes(options.dtype, options.block_tokens);
    const auto table_entries = static_cast<size_t>(options.max_seqs * TableStride(options));
    const bool on_gpu = group.home == DeviceType::kCuda;
    std::byte* pool = nullptr;
    const int32_t* table = nullptr;
    Status status = on_gpu ? store.AddDevicePool(num_blocks * block_bytes, table_entries, &pool, &table)
                           : store.AddHostPool(num_blocks * block_bytes, table_entries, &pool, &table);
    if (!status.ok()) return status.WithContext("KV cache '" + group.name + "'");
    const int64_t num_swap_blocks = NumSwapBlocks(group, options);
    if (num_swap_blocks > INT32_MAX) return InvalidArgument("{} swap blocks, the limit is {}", num_swap_blocks, INT32_MAX);
    status = store.AddSwapPool(on_gpu, num_swap_blocks * block_bytes);
    if (!status.ok()) return status.WithContext("swap pool of KV cache '" + group.name + "'");
    store.infos_.push_back({.name = group.name,
                            .block_tokens = options.block_tokens,
                            .num_blocks = static_cast<int32_t>(num_blocks),
                            .window = group.window,
                            .block_bytes = block_bytes,
                            .num_swap_blocks = static_cast<int32_t>(num_swap_blocks),
                            .first_token = group.first_token,
                            .end_token = group.end_token,
                            .on_device = on_gpu});
    store.bindings_.push_back({.pool = pool,
                               .dtype = options.dtype,
                               .planes = group.Planes(options.block_tokens),
                               .block_tokens = options.block_tokens,
                               .block_tables = table,
                               .table_stride = TableStride(options)});
  }
  return store;
}

Status KvStore::AddHostPool(int64_t bytes, size_t table_entries, std::byte** pool, const int32_t** table) {
  ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(bytes));
  pools_.push_back(std::move(buffer));
  tables_.emplace_back(table_entries, 0);
  device_pools_.emplace_back();
  device_tables_.emplace_back();
  *pool = pools_.back().data();
  *table = tables_.back().data();
  return Status::Ok();
}

Status KvStore::AddDevicePool(int64_t bytes, size_t table_entries, std::byte** pool, const int32_t** table) {
  ASSIGN_OR_RETURN(CudaBuffer buffer, CudaBuffer::Allocate(cuda_, bytes));
  const auto table_bytes = static_cast<int64_t>(table_entries * sizeof(int32_t));
  ASSIGN_OR_RETURN(CudaBuffer tables, CudaBuffer::Allocate(cuda_, table_bytes));
  RETURN_IF_ERROR(FromCuda(cuda_->fill(tables.data(), 0, table_bytes, nullptr)));
  RETURN_IF_ERROR(FromCuda(cuda_->stream_synchronize(nullptr)));  // other streams, which may write tables next, do not wait for this one
  pools_.emplace_back();
  tables_.emplace_back();
  device_pools_.push_back(std::move(buffer));
  device_tables_.push_back(std::move(tables));
  *pool = device_pools_.back().data();
  *table = device_tables_.back().as<int32_t>();
  return Status::Ok();
}

Status KvStore::AddSwapPool(bool on_gpu, int64_t bytes) {
  swap_pools_.emplace_back();
  pinned_pools_.emplace_back();
  if (on_gpu) {
    ASSIGN_OR_RETURN(pinned_pools_.back(), CudaHostBuffer::Allocate(cuda_, bytes));
  } else {
    ASSIGN_OR_RETURN(swap_pools_.back(), Buffer::Allocate(bytes));
  }
  return Status::Ok();
}

Status KvStore::SwapOutOfGpu(const BlockMove& move, void* stream) const {
  const auto group = static_cast<size_t>(move.group);
  const int64_t bytes = infos_[group].block_bytes;
  return FromCuda(cuda_->copy(pinned_pools_[group].data() + move.host_block * bytes,
                              device_pools_[group].data() + move.device_block * bytes, bytes, stream));
}

Status KvStore::SwapIntoGpu(const BlockMove& move, void* stream) const {
  const auto group = static_cast<size_t>(move.group);
  const int64_t bytes = infos_[group].block_bytes;
  return FromCuda(cuda_->copy(device_pools_[group].data() + move.device_block * bytes,
                              pinned_pools_[group].data() + move.host_block * bytes, bytes, stream));
}

Status KvStore::CopyOnGpu(const BlockCopy& copy, void* stream) const {
  const int64_t bytes = infos_[static_cast<size_t>(copy.group)].block_bytes;
  std::byte* pool = device_pools_[static_cast<size_t>(copy.group)].data();
  return FromCuda(cuda_->copy(pool + copy.to_block * bytes, pool + copy.from_block * bytes, bytes, stream));
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

std::span<std::byte> KvStore::BlockBytes(int32_t group, int32_t block) {
  const auto g = static_cast<size_t>(group);
  const int64_t bytes = infos_[g].block_bytes;
  CHECK(!OnGpu(group) && block >= 0 && block < infos_[g].num_blocks) << "block " << block << " of group " << group;
  return {pools_[g].data() + block * bytes, static_cast<size_t>(bytes)};
}

std::span<std::byte> KvStore::DeviceBytes(int32_t group, int32_t block) const {
  const auto g = static_cast<size_t>(group);
  const int64_t bytes = infos_[g].block_bytes;
  CHECK(OnGpu(group) && block >= 0 && block < infos_[g].num_blocks) << "block " << block << " of group " << group;
  return {device_pools_[g].data() + block * bytes, static_cast<size_t>(bytes)};
}

void KvStore::SwapOut(const BlockMove& move) {
  const auto group = static_cast<size_t>(move.group);
  const int64_t bytes = infos_[group].block_bytes;
  std::memcpy(swap_pools_[group].data() + move.host_block * bytes, pools_[group].data() + move.device_block * bytes,
              static_cast<size_t>(bytes));
}

void KvStore::SwapIn(const BlockMove& move) {
  const auto group = static_cast<size_t>(move.group);
  const int64_t bytes = infos_[group].block_bytes;
  std::memcpy(pools_[group].data() + move.device_block * bytes, swap_pools_[group].data() + move.host_block * bytes,
              static_cast<size_t>(bytes));
}

}  // namespace cachalot
