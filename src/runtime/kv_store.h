// KvStore: the memory behind KV blocks and block tables, by group.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/plan.h"
#include "model/forward_context.h"
#include "model/kv_layout.h"
#include "tensor/buffer.h"

namespace cachalot {

struct KvStoreOptions {
  DType dtype = DType::kF16;
  int32_t block_tokens = 16;
  int32_t max_seqs = 1;
  int32_t max_context = 0;
  int64_t capacity_tokens = 0;  // over all sequences
};

class KvStore {
 public:
  static Result<KvStore> Allocate(const std::vector<KvGroupSpec>& groups, const KvStoreOptions& options);
  // Bytes that Allocate would reserve, pools and tables.
  static int64_t PlanBytes(const std::vector<KvGroupSpec>& groups, const KvStoreOptions& options);

  const std::vector<KvGroupInfo>& infos() const { return infos_; }
  const std::vector<KvBinding>& bindings() const { return bindings_; }

  void Write(const BlockWrite& write);
  void Copy(const BlockCopy& copy);

 private:
  std::vector<KvGroupInfo> infos_;
  std::vector<Buffer> pools_;
  std::vector<std::vector<int32_t>> tables_;  // [max_seqs, table_stride]
  std::vector<KvBinding> bindings_;
};

}  // namespace cachalot
