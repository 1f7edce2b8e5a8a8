// Where a head of a quantised cache lies.
#pragma once

#include "kernels/common/paged_kv.h"
#include "quant/kv_format.h"

namespace cachalot {

// kv: At(position).
inline std::byte* KvRegion(const PagedKv& kv, int64_t slot, int64_t position, int64_t head) {
  return kv.Block(slot, position) + head * kv.planes->head_bytes;
}

inline const float* KvKeyMean(const PagedKv& kv, int64_t head) {
  return kv.key_mean == nullptr ? nullptr : kv.key_mean + head * kv.planes->key.coding.dim;
}

}  // namespace cachalot
