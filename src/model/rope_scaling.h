// From a configuration's RoPE settings to the frequencies that the kernels use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace cachalot {

enum class RopeScalingKind : uint8_t { kNone, kLinear, kLlama3, kYarn };

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1.0;
  int64_t original_context = 0;
  // Llama-3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // YaRN (Peng et al. 2023)
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 0.0;          // DeepSeek's; 0: absent
  double mscale_all_dim = 0.0;  // DeepSeek's; 0: absent
  double attention_factor = 0.0;  // 0: derived
};

// Inverse frequencies [dim/2] of theta^(-2i/dim), scaled.
std::vector<float> RopeInvFreq(int32_t dim, double theta, const RopeScaling& scaling);
// What cos and sin are multiplied by.
double RopeMscale(const RopeScaling& scaling);
// What the softmax scale is multiplied by: (0.1 · mscale_all_dim · ln(factor) + 1)² for DeepSeek's YaRN, else 1. The one
// definition, for absorbed and expanded attention alike.
double RopeSoftmaxCorrection(const RopeScaling& scaling);

}  // namespace cachalot
