// PagedKv: one layer of one KV group as kernels see it. Blocks are addressed through block tables, never
// gathered.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace cachalot {

struct KvPlanes;  // quant/kv_format.h

// Block b starts at data + b * block_bytes. In it, for each KV head, keys [block_tokens, k_dim]
// (k_head_stride apart, in values), then values [block_tokens, v_dim] starting v_offset values after the
// block's start. MLA: one head, k_dim = kv_lora_rank + rope dim, the value is the first v_dim values of the
// key (v_offset = 0, v_token_stride = k_dim).
struct PagedKv {
  std::byte* data = nullptr;
  DType dtype = DType::kF16;  // kF32, kF16, kBF16
  int32_t block_tokens = 16;
  int32_t num_kv_heads = 0;
  int32_t k_dim = 0;
  int32_t v_dim = 0;
  int64_t block_bytes = 0;
  int64_t k_head_stride = 0;
  int64_t v_offset = 0;
  int64_t v_head_stride = 0;
  int64_t v_token_stride = 0;
  // A quantised cache: head h's region begins h * planes->head_bytes after the block's start, and dtype and strides say
  // nothing. Null: plain values.
  const KvPlanes* planes = nullptr;
  const float* key_mean = nullptr;  // [num_kv_heads, coded values], taken off before coding; null: none
  // Of a quantised cache: where the tokens at positions [0, sink_tokens) lie instead, a quantised cache of the same shape
  // and mean whose scheme is SinkScheme; here they have no place. A multiple of 8 and of block_tokens; no window.
  const PagedKv* sinks = nullptr;
  int32_t sink_tokens = 0;
  const int32_t* block_tables = nullptr;  // [num_slots, table_stride]
  int64_t table_stride = 0;

  const PagedKv& At(int64_t position) const { return position < sink_tokens ? *sinks : *this; }
  // Where token `position` of sequence slot `slot` lives, if it is At(position).
  std::byte* Block(int64_t slot, int64_t position) const {
    return data + int64_t{block_tables[slot * table_stride + position / block_tokens]} * block_bytes;
  }
};

// One sequence's part of a step: rows [q_begin, q_begin + q_len) of the batch are its tokens at positions
// [kv_len - q_len, kv_len).
struct SeqSpan {
  int32_t slot = 0;
  int32_t q_begin = 0;
  int32_t q_len = 0;
  int32_t kv_len = 0;  // tokens in the cache once this step's are written
};

}  // namespace cachalot
