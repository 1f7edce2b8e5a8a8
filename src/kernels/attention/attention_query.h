// The query that a quantised cache's keys are multiplied with: its coded part rotated as the keys are and, where their
// codes are integers, rounded to signed bytes with one scale. What the rounding does is part of the op: every variant's
// scores are products of the same integers. Sinks meet the same query, so what is common to all keys still cancels.
#pragma once

#include <cmath>
#include <limits>

#include "quant/kv_format.h"
#include "quant/kv_rotate.h"

namespace cachalot {

inline constexpr float kQueryLimit = 127.0f;

inline bool IntegerKeys(const KvPlanes& planes) {
  return planes.key.coding.code != KvCode::kE4M3 && planes.key.coding.code != KvCode::kBF16;
}

// Scores are dot products of what is stored times this.
inline float StoredScoreScale(const KvPlanes& planes, float scale) { return scale / static_cast<float>(planes.rotation); }

// From the largest magnitude; a query with a value that is no number has no scale either, and its output is NaN.
inline float QueryScale(float largest) {
  if (!(largest <= std::numeric_limits<float>::max())) return std::numeric_limits<float>::quiet_NaN();
  return largest < kKvSmallest ? 0.0f : largest / kQueryLimit;
}

}  // namespace cachalot
