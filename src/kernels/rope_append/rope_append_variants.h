// The variants of RopeAppend: internal to the op's folder.
#pragma once

#include "kernels/common/parallel.h"
#include "kernels/rope_append/rope_append.h"

namespace cachalot {

void RopeAppendRef(const ExecContext& ctx, const RopeAppendParams& params);
void RopeAppendAvx2(const ExecContext& ctx, const RopeAppendParams& params);

// Calls fn(row, slot, position) for every token of the step.
template <typename Fn>
void ForEachToken(const ExecContext& ctx, std::span<const SeqSpan> spans, double token_ns, Fn&& fn) {
  int64_t num_tokens = 0;
  for (const SeqSpan& span : spans) num_tokens += span.q_len;
  ParallelRanges(ctx, num_tokens, token_ns, [&](int64_t begin, int64_t end, int) {
    int64_t first = 0;  // of the span, counted over all tokens of the step
    for (const SeqSpan& span : spans) {
      if (first >= end) break;
      const int64_t from = std::max(begin, first) - first, to = std::min(end, first + span.q_len) - first;
      for (int64_t i = from; i < to; ++i)
        fn(span.q_begin + i, span.slot, int64_t{span.kv_len} - span.q_len + i);
      first += span.q_len;
    }
  });
}

}  // namespace cachalot
