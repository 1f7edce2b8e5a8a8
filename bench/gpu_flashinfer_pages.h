// FlashInfer's decode kernel over any pages that its paged_kv_t can describe: heads of 128, F16 or BF16, groups of 4 query heads.
// Built where -DCACHALOT_FLASHINFER names the headers.
#pragma once

#include <cstdint>

#include "cachalot/flashinfer.h"

namespace cachalot {

// Device memory: q and out [batch, num_q_heads, 128] of the pages' dtype. indptr_host: the table's, in host memory. Null, or what
// went wrong. Waits for the result.
const char* FlashInferDecodePages(const cachalot_kv_pages& pages, const int32_t* indptr_host, int num_q_heads, const void* q, void* out,
                                  void* stream);

}  // namespace cachalot
