// PagedKv in device code.
#pragma once

#include "kernels/common/paged_kv.h"

namespace cachalot {

// Where the block with token `position` of sequence slot `slot` begins.
__device__ __forceinline__ std::byte* BlockOf(const PagedKv& kv, int64_t slot, int64_t position) {
  return kv.data + int64_t{kv.block_tables[slot * kv.table_stride + position / kv.block_tokens]} * kv.block_bytes;
}

}  // namespace cachalot
