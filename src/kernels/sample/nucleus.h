// Where top-p cuts a whole row, without sorting it: internal to the op's folder.
#pragma once

#include <algorithm>
#include <span>

#include "kernels/sample/sample_primitives.h"

namespace cachalot {

// Bins of equal width in the exponent to base 2: in order, and none of them holds much of a row.
inline constexpr int32_t kNucleusBins = 126 * 16;

// The worst token of the fewest best ones whose weights reach `target`. weights [vocab] are those of the
// logits; a logit's bin is that of its exponent below the largest, (largest - logit) * rate, and weight 0
// belongs to no bin. Whole bins are taken while they do not reach the target; only the one that does is
// sorted. bin_mass [kNucleusBins] and list [vocab] are scratch.
inline TokenLogit NucleusCut(const float* logits, const float* weights, int32_t vocab, float largest,
                             float rate, double target, double* bin_mass, TokenLogit* list) {
  const auto bin_of = [&](float logit) {
    const float below = logit == largest ? 0.0f : (largest - logit) * rate;
    return std::min(static_cast<int32_t>(below * (kNucleusBins / 126)), kNucleusBins - 1);
  };
  std::fill_n(bin_mass, kNucleusBins, 0.0);
  for (int32_t i = 0; i < vocab; ++i) {
    if (weights[i] > 0) bin_mass[bin_of(logits[i])] += weights[i];
  }
  // The last bin with any mass is the crossing one when rounding keeps the sum from reaching the target.
  int32_t crossing = 0;
  double mass = 0, before = 0;
  for (int32_t bin = 0; bin < kNucleusBins; ++bin) {
    if (bin_mass[bin] == 0) continue;
    crossing = bin;
    before = mass;
    mass += bin_mass[bin];
    if (mass >= target) break;
  }
  int32_t held = 0;
  for (int32_t i = 0; i < vocab; ++i) {
    if (weights[i] > 0 && bin_of(logits[i]) == crossing) list[held++] = {logits[i], i};
  }
  std::sort(list, list + held, Better);
  int32_t last = 0;
  for (double sum = before; last < held; ++last) {
    sum += weights[list[last].token_id];
    if (sum >= target) break;
  }
  return list[std::min(last, held - 1)];
}

}  // namespace cachalot
