// The variants of Attention: internal to the op's folder.
#pragma once

#include "kernels/attention/attention.h"
#include "quant/kv_format.h"

namespace cachalot {

void AttentionRef(const ExecContext& ctx, const AttentionParams& params);
// A row of it over a quantised cache; acc [v_dim] is scratch.
void AttendCodesRow(const AttentionParams& params, const SeqSpan& span, int64_t row, int64_t head, double* acc);

bool AttentionAvx2Covers(const AttentionParams& params);
void AttentionAvx2(const ExecContext& ctx, const AttentionParams& params);
int64_t AttentionAvx2WorkspaceBytes(int num_threads, int32_t k_dim, int32_t v_dim);

// The cache positions [begin, end) that the token at `position` sees.
struct KvRange {
  int64_t begin;
  int64_t end;
};
inline KvRange VisibleRange(int64_t position, int32_t window) {
  const int64_t begin = window > 0 && position >= window ? position - window + 1 : 0;
  return {begin, position + 1};
}

// Whether values are read from within the keys (MLA): such bytes are counted once.
inline bool ValueLiesInKey(const PagedKv& kv) {
  return kv.v_offset == 0 && kv.v_token_stride == kv.k_dim && kv.v_head_stride == kv.k_head_stride;
}

inline void CountKvBytes(const ExecContext& ctx, const PagedKv& kv, int64_t num_tokens) {
  if (ctx.counters == nullptr) return;
  const int64_t values = ValueLiesInKey(kv) ? kv.k_dim : int64_t{kv.k_dim} + kv.v_dim;
  const int64_t token_bytes = kv.planes != nullptr ? kv.planes->token_bytes() : DTypeBytes(kv.dtype, values);
  ctx.counters->kv_bytes.fetch_add(num_tokens * token_bytes, std::memory_order_relaxed);
}

}  // namespace cachalot
