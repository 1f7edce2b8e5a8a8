// The passes over a whole row of logits, one table per instruction set: internal to the op's folder.
//
// In all of them a NaN counts as -infinity, and Weight(l) = exp((l - largest) * inverse_temperature) with the
// largest logit's own weight exactly 1 (also when it is infinite).
#pragma once

#include <cstdint>
#include <limits>

namespace cachalot {

inline constexpr float kLowestLogit = -std::numeric_limits<float>::infinity();
// Factors on logits are bounded by this, so that no product with 0 is a NaN.
inline constexpr float kLargestRate = std::numeric_limits<float>::max();

struct TokenLogit {
  float logit;
  int32_t token_id;
};

// Best first; the lower id first among equals.
inline bool Better(const TokenLogit& a, const TokenLogit& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token_id < b.token_id;
}

struct SamplePrimitives {
  // The first of the largest; {-infinity, 0} when nothing is larger than -infinity.
  TokenLogit (*find_largest)(const float* logits, int32_t count);
  // Sum of the weights.
  double (*sum_weights)(const float* logits, int32_t count, float largest, float inverse_temperature);
  // out [count] = the weights; may be the logits themselves.
  void (*weights)(const float* logits, int32_t count, float largest, float inverse_temperature, float* out);
  // The first index >= begin with logits[index] > threshold; count when there is none.
  int32_t (*find_above)(const float* logits, int32_t begin, int32_t count, float threshold);
};

extern const SamplePrimitives kSamplePrimitivesRef;
extern const SamplePrimitives kSamplePrimitivesAvx2;

}  // namespace cachalot
