// The self-describing header: made, sealed, checked, and understood as a tensor of KvRemap.
// Invariant: a header that CheckKvHeader passed describes rows that lie within its total_bytes.
#pragma once

#include "capi/flashinfer/kv_outcome.h"
#include "kernels/kv_remap/kv_remap.h"

namespace cachalot {

static_assert(sizeof(cachalot_kv_header) == 256);

inline constexpr int32_t kMaxKvHeads = 1 << 16;

KvOutcome InitKvHeader(cachalot_kv_header* header, int qtype, int packing, int scale_type, uint32_t group, uint32_t batch,
                       uint32_t kv_heads, uint32_t seq_len, uint32_t head_dim);
void SealKvHeader(cachalot_kv_header* header);
// `detached`: the header does not lie at the start of the memory that it describes.
KvOutcome CheckKvHeader(const cachalot_kv_header& header, uint64_t bytes, bool detached);

// `data`: where the memory that a checked header describes begins. What it becomes is left to the caller.
KvOutcome TensorOf(const cachalot_kv_header& header, const void* data, KvRemapTensor* tensor);

// The stored type and whether BF16 comes out.
KvOutcome ParseQtype(int qtype, uint32_t* stored, bool* to_bf16);

}  // namespace cachalot
