// The definitions of the passes over a row.
#include <cmath>

#include "kernels/sample/sample_primitives.h"

namespace cachalot {
namespace {

TokenLogit FindLargest(const float* logits, int32_t count) {
  TokenLogit best{kLowestLogit, 0};
  for (int32_t i = 0; i < count; ++i) {
    if (logits[i] > best.logit) best = {logits[i], i};
  }
  return best;
}

float Weight(float logit, float largest, float inverse_temperature) {
  if (logit == largest) return 1.0f;
  return std::isnan(logit) ? 0.0f : std::exp((logit - largest) * inverse_temperature);
}

double SumWeights(const float* logits, int32_t count, float largest, float inverse_temperature) {
  double sum = 0;
  for (int32_t i = 0; i < count; ++i) sum += Weight(logits[i], largest, inverse_temperature);
  return sum;
}

void Weights(const float* logits, int32_t count, float largest, float inverse_temperature, float* out) {
  for (int32_t i = 0; i < count; ++i) out[i] = Weight(logits[i], largest, inverse_temperature);
}

int32_t FindAbove(const float* logits, int32_t begin, int32_t count, float threshold) {
  int32_t i = begin;
  while (i < count && !(logits[i] > threshold)) ++i;
  return i;
}

}  // namespace

const SamplePrimitives kSamplePrimitivesRef = {&FindLargest, &SumWeights, &Weights, &FindAbove};

}  // namespace cachalot
