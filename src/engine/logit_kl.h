// How far one model's next-token distribution is from another's.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

namespace cachalot {

// The log of the sum of exponentials.
inline double LogNormaliser(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - largest);
  return largest + std::log(sum);
}

// KL(p || q) in nats, of logits; not finite where one of them is not.
inline double LogitKl(std::span<const float> p, std::span<const float> q) {
  const double p_norm = LogNormaliser(p), q_norm = LogNormaliser(q);
  double kl = 0;
  for (size_t v = 0; v < p.size(); ++v) kl += std::exp(p[v] - p_norm) * ((p[v] - p_norm) - (q[v] - q_norm));
  return kl;
}

}  // namespace cachalot
