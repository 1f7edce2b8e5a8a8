#include "model/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace cachalot {
namespace {

double YarnMscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

}  // namespace

std::vector<float> RopeInvFreq(int32_t dim, double theta, const RopeScaling& scaling) {
  const int32_t half = dim / 2;
  std::vector<float> inv_freq(static_cast<size_t>(half));
  // YaRN: the dimension index whose wavelength makes `rotations` turns in the original context.
  const auto correction_dim = [&](double rotations) {
    return dim * std::log(static_cast<double>(scaling.original_context) / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  double low = 0;
  double high = 0;
  if (scaling.kind == RopeScalingKind::kYarn) {
    low = std::max(std::floor(correction_dim(scaling.beta_fast)), 0.0);
    high = std::min(std::ceil(correction_dim(scaling.beta_slow)), static_cast<double>(dim - 1));
    if (low == high) high += 0.001;  // as the reference does, so that the ramp is defined
  }
  for (int32_t i = 0; i < half; ++i) {
    double freq = std::pow(theta, -2.0 * i / dim);
    switch (scaling.kind) {
      case RopeScalingKind::kNone:
        break;
      case RopeScalingKind::kLinear:
        freq /= scaling.factor;
        break;
      case RopeScalingKind::kLlama3: {
        const double wavelength = 2 * std::numbers::pi / freq;
        const auto original = static_cast<double>(scaling.original_context);
        if (wavelength > original / scaling.low_freq_factor) {
          freq /= scaling.factor;
        } else if (wavelength >= original / scaling.high_freq_factor) {
          const double smooth = (original / wavelength - scaling.low_freq_factor) /
                                (scaling.high_freq_factor - scaling.low_freq_factor);
          freq *= (1 - smooth) / scaling.factor + smooth;
        }
        break;
      }
      case RopeScalingKind::kYarn: {
        const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
        freq = freq / scaling.factor * ramp + freq * (1 - ramp);
        break;
      }
    }
    inv_freq[static_cast<size_t>(i)] = static_cast<float>(freq);
  }
  return inv_freq;
}

double RopeMscale(const RopeScaling& scaling) {
  if (scaling.kind != RopeScalingKind::kYarn) return 1.0;
  if (scaling.attention_factor != 0) return scaling.attention_factor;
  if (scaling.mscale != 0 && scaling.mscale_all_dim != 0) {
    return YarnMscale(scaling.factor, scaling.mscale) / YarnMscale(scaling.factor, scaling.mscale_all_dim);
  }
  return YarnMscale(scaling.factor, 1.0);
}

double RopeSoftmaxCorrection(const RopeScaling& scaling) {
  if (scaling.kind != RopeScalingKind::kYarn || scaling.mscale_all_dim == 0) return 1.0;
  const double m = YarnMscale(scaling.factor, scaling.mscale_all_dim);
  return m * m;
}

}  // namespace cachalot
