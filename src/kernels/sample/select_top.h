// The best k of a row without sorting it: internal to the op's folder.
#pragma once

#include <algorithm>

#include "kernels/sample/sample_primitives.h"

namespace cachalot {

// Entries of scratch that SelectTop wants.
inline int64_t SelectTopEntries(int32_t vocab, int32_t k) {
  return std::min<int64_t>(vocab, 2 * int64_t{k} + 64);
}

// The k best logits (all that are larger than -infinity, when fewer), best first, in scratch[0 .. result).
//
// One pass: what exceeds the threshold is kept; a full buffer is cut to its k best, and the threshold rises
// to the worst of them. What equals the threshold comes later in the row than k better or equal ones, so it
// has no place.
inline int32_t SelectTop(const SamplePrimitives& primitives, const float* logits, int32_t vocab, int32_t k,
                         TokenLogit* scratch) {
  const int64_t capacity = SelectTopEntries(vocab, k);
  float threshold = kLowestLogit;
  int64_t held = 0;
  for (int32_t i = 0;; ++i) {
    i = primitives.find_above(logits, i, vocab, threshold);
    if (i >= vocab) break;
    if (held == capacity) {
      std::nth_element(scratch, scratch + k - 1, scratch + held, Better);
      held = k;
      threshold = scratch[k - 1].logit;
      if (!(logits[i] > threshold)) continue;
    }
    scratch[held++] = {logits[i], i};
  }
  const int64_t best = std::min<int64_t>(held, k);
  if (held > best) std::nth_element(scratch, scratch + best - 1, scratch + held, Better);
  std::sort(scratch, scratch + best, Better);
  return static_cast<int32_t>(best);
}

}  // namespace cachalot
