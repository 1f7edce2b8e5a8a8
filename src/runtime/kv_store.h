// KvStore: the memory behind KV blocks and block tables, by group, each where its layers live. Tables of GPU groups are
// written by the step itself (kernels/step/step.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/cuda/cuda_library.h"
#include "kv/plan.h"
#include "model/forward_context.h"
#include "model/kv_layout.h"
#include "tensor/buffer.h"

namespace cachalot {

struct KvStoreOptions {
  DType dtype = DType::kF16;   // of plain groups
  int32_t block_tokens = 16;
  int32_t max_seqs = 1;
  int32_t max_context = 0;
  int64_t capacity_tokens = 0;  // over all sequences
  int64_t swap_tokens = 0;      // places on the host for blocks of preempted sequences
  const CudaBackend* cuda = nullptr;  // for groups that live on the GPU
};

class KvStore {
 public:
  static Result<KvStore> Allocate(const std::vector<KvGroupSpec>& groups, const KvStoreOptions& options);
  // Bytes that Allocate would reserve for the groups of one home, pools and tables.
  static int64_t PlanBytes(const std::vector<KvGroupSpec>& groups, const KvStoreOptions& options,
                           DeviceType home = DeviceType::kCpu);

  const std::vector<KvGroupInfo>& infos() const { return infos_; }
  const std::vector<KvBinding>& bindings() const { return bindings_; }

  bool OnGpu(int32_t group) const { return device_pools_[static_cast<size_t>(group)].size() > 0; }
  // Of a group on the CPU.
  void Write(const BlockWrite& write);
  void Copy(const BlockCopy& copy);
  void SwapOut(const BlockMove& move);
  void SwapIn(const BlockMove& move);
  std::span<std::byte> BlockBytes(int32_t group, int32_t block);
  // Of a group on the GPU: device memory.
  std::span<std::byte> DeviceBytes(int32_t group, int32_t block) const;
  // Of a group on the GPU, in the stream's order.
  Status CopyOnGpu(const BlockCopy& copy, void* stream) const;
  Status SwapOutOfGpu(const BlockMove& move, void* stream) const;
  Status SwapIntoGpu(const BlockMove& move, void* stream) const;

 private:
  Status AddHostPool(int64_t bytes, size_t table_entries, std::byte** pool, const int32_t** table);
  Status AddDevicePool(int64_t bytes, size_t table_entries, std::byte** pool, const int32_t** table);

  Status AddSwapPool(bool on_gpu, int64_t bytes);

  std::vector<KvGroupInfo> infos_;
  const CudaBackend* cuda_ = nullptr;
  std::vector<Buffer> pools_;
  std::vector<Buffer> swap_pools_;            // [groups] of groups on the CPU
  std::vector<CudaHostBuffer> pinned_pools_;  // [groups] of groups on the GPU: page-locked
  std::vector<CudaBuffer> device_pools_;
  std::vector<CudaBuffer> device_tables_;
  std::vector<std::vector<int32_t>> tables_;  // [max_seqs, table_stride]
  std::vector<KvBinding> bindings_;
};

}  // namespace cachalot
