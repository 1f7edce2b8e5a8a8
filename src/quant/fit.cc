#include "quant/fit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tensor/float_convert.h"

namespace cachalot {
namespace {

// Four lanes: the baseline instruction set has them, and sums in four chains are the same on every machine.
typedef float V4 __attribute__((vector_size(16)));

V4 Splat(float value) {
  return V4{value, value, value, value};
}
V4 Load(const float* p) {
  V4 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
float Sum(V4 v) {
  return (v[0] + v[2]) + (v[1] + v[3]);
}

// --- Levels: where a value, divided by the scale, may go. ---

struct LinearLevels {
  float lo, hi;

  // Halves to even; a NaN gives lo.
  V4 Nearest(V4 v) const {
    v = v > Splat(lo) ? v : Splat(lo);
    v = v < Splat(hi) ? v : Splat(hi);
    const V4 magic = Splat(12582912.0f);  // 1.5 * 2^23: what is added to it is rounded to an integer
    return (v + magic) - magic;
  }
  uint8_t Code(float level) const { return static_cast<uint8_t>(level - lo); }
};

struct IQ4Tables {
  int8_t level[256];  // the nearest to index - 128; where two are as near, the lower
  uint8_t code[256];
};

constexpr IQ4Tables MakeIQ4Tables() {
  IQ4Tables tables{};
  const auto distance = [](int a, int b) { return a > b ? a - b : b - a; };
  for (int v = -128; v < 128; ++v) {
    int best = 0;
    for (int i = 1; i < 16; ++i) {
      if (distance(kIQ4Levels[i], v) < distance(kIQ4Levels[best], v)) best = i;
    }
    tables.level[v + 128] = kIQ4Levels[best];
    tables.code[v + 128] = static_cast<uint8_t>(best);
  }
  return tables;
}

constexpr IQ4Tables kIQ4Tables = MakeIQ4Tables();

struct IQ4Levels {
  static constexpr float lo = -127, hi = 113;

  V4 Nearest(V4 v) const {
    v = LinearLevels{lo, hi}.Nearest(v);
    for (int i = 0; i < 4; ++i) v[i] = kIQ4Tables.level[static_cast<int>(v[i]) + 128];
    return v;
  }
  uint8_t Code(float level) const { return kIQ4Tables.code[static_cast<int>(level) + 128]; }
};

// --- The values of a block, made finite, with their weights. ---

template <int kMax>
struct Values {
  alignas(16) float x[kMax] = {};
  alignas(16) float w[kMax] = {};

  Values(const float* source, const float* importance, int count) {
    constexpr float kLargest = 1e18f;  // its square is a float too
    for (int i = 0; i < count; ++i) {
      const float value = source[i];
      x[i] = !(value == value) ? 0.0f : std::clamp(value, -kLargest, kLargest);
      // A weight of zero would leave a value without any say where all are zero.
      w[i] = importance == nullptr || !(importance[i] > 0) ? (importance == nullptr ? 1.0f : 1e-12f)
                                                           : std::min(importance[i], kLargest);
    }
  }
};

uint16_t ToF16(float value) {
  return F32ToF16(std::clamp(value, -65504.0f, 65504.0f));
}

template <typename Levels>
float LevelsOf(const Levels& levels, const float* x, const float* w, int count, float inverse, float offset,
               float scale, uint8_t* q) {
  V4 error = Splat(0);
  for (int i = 0; i < count; i += 4) {
    const V4 value = Load(x + i) - offset;
    const V4 level = levels.Nearest(value * inverse);
    const V4 rest = value - level * scale;
    error += Load(w + i) * rest * rest;
    for (int j = 0; j < 4; ++j) q[i + j] = levels.Code(level[j]);
  }
  return Sum(error);
}

// The codes for a given scale and offset; what they leave, as a weighted sum of squares.
template <typename Levels>
float Quantise(const Levels& levels, const float* x, const float* w, int count, float scale, float offset,
               uint8_t* q) {
  return LevelsOf(levels, x, w, count, scale != 0 ? 1.0f / scale : 0.0f, offset, scale, q);
}

// --- One scale. ---

constexpr int kCandidates = 12;  // on either side

template <typename Levels>
float BestScale(const Levels& levels, const float* x, const float* w, int count, float step) {
  float extreme = 0;
  for (int i = 0; i < count; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  if (std::fabs(extreme) < 1e-30f) return 0;
  float best_scale = 0, best_gain = -1;
  // The value of largest magnitude goes to the lower end, which reaches at least as far as the upper one.
  for (int candidate = -kCandidates; candidate <= kCandidates; ++candidate) {
    const float inverse = (levels.lo + step * static_cast<float>(candidate)) / extreme;
    V4 sum_xl = Splat(0), sum_ll = Splat(0);
    for (int i = 0; i < count; i += 4) {
      const V4 value = Load(x + i), level = levels.Nearest(value * inverse), weighted = Load(w + i) * level;
      sum_xl += weighted * value;
      sum_ll += weighted * level;
    }
    const float xl = Sum(sum_xl), ll = Sum(sum_ll);
    if (ll > 0 && xl * (xl / ll) > best_gain) {
      best_gain = xl * (xl / ll);
      best_scale = xl / ll;
    }
  }
  return best_scale;
}

// --- A scale and a minimum. ---

AffineFit BestAffine(const float* x, const float* w, int count, int hi, bool only_below) {
  float low = x[0], high = x[0];
  V4 sum_w4 = Splat(0), sum_x4 = Splat(0);
  for (int i = 0; i < count; ++i) low = std::min(low, x[i]), high = std::max(high, x[i]);
  for (int i = 0; i < count; i += 4) {
    sum_w4 += Load(w + i);
    sum_x4 += Load(w + i) * Load(x + i);
  }
  const float sum_w = Sum(sum_w4), sum_x = Sum(sum_x4);
  if (only_below) low = std::min(low, 0.0f);
  if (!(high - low > 1e-30f)) return {0, low};
  const LinearLevels levels{0, static_cast<float>(hi)};
  AffineFit best{(high - low) / static_cast<float>(hi), low};
  float best_gain = -std::numeric_limits<float>::infinity();
  const auto attempt = [&](float inverse, float min) {
    V4 sum_q4 = Splat(0), sum_qq4 = Splat(0), sum_xq4 = Splat(0);
    for (int i = 0; i < count; i += 4) {
      const V4 value = Load(x + i), q = levels.Nearest((value - min) * inverse), weighted = Load(w + i) * q;
      sum_q4 += weighted;
      sum_qq4 += weighted * q;
      sum_xq4 += weighted * value;
    }
    const float sum_q = Sum(sum_q4), sum_qq = Sum(sum_qq4), sum_xq = Sum(sum_xq4);
    const float determinant = sum_w * sum_qq - sum_q * sum_q;
    if (!(determinant > 0)) return;
    AffineFit fit{(sum_w * sum_xq - sum_x * sum_q) / determinant,
                  (sum_qq * sum_x - sum_q * sum_xq) / determinant};
    if (only_below && fit.min > 0) fit = {sum_xq / sum_qq, 0};
    // What the fit takes away from the sum of squares.
    const float gain = fit.scale * sum_xq + fit.min * sum_x;
    if (fit.scale > 0 && gain > best_gain) best_gain = gain, best = fit;
  };
  const float step = hi < 8 ? 0.05f : 0.1f;
  for (int candidate = -kCandidates; candidate <= kCandidates; ++candidate) {
    attempt((static_cast<float>(hi) + step * static_cast<float>(candidate)) / (high - low), low);
  }
  // The minimum has moved with the fit: round once more from there.
  for (int again = 0; again < 3; ++again) {
    const AffineFit from = best;
    for (float stretch : {0.97f, 1.0f, 1.03f}) attempt(stretch / from.scale, from.min);
  }
  return best;
}

// --- Blocks of 256. ---

template <typename Levels>
void EncodeScaled256(const Levels& levels, const float* source, const float* importance, int sub_block,
                     float step, const SignedScales& scales, BlockCodes* codes) {
  const Values<256> values(source, importance, 256);
  const int num_subs = 256 / sub_block;
  float wanted[kMaxSubBlocks];
  float extreme = 0;
  for (int j = 0; j < num_subs; ++j) {
    const int at = j * sub_block;
    wanted[j] = BestScale(levels, values.x + at, values.w + at, sub_block, step);
    if (std::fabs(wanted[j]) > std::fabs(extreme)) extreme = wanted[j];
  }
  const auto encode = [&](float d, BlockCodes* out) {  // with the best integer scales for this d
    out->d = ToF16(d);
    const float stored = F16ToF32(out->d);
    float total = 0;
    for (int j = 0; j < num_subs; ++j) {
      const float ratio = stored != 0 ? std::clamp(wanted[j] / stored, -200.0f, 200.0f) : 0.0f;
      const int nearest = static_cast<int>(std::lround(ratio));
      float least = std::numeric_limits<float>::infinity();
      for (int scale = nearest - 1; scale <= nearest + 1; ++scale) {
        const int clamped = std::clamp(scale, scales.lo, scales.hi);
        uint8_t q[kMaxBlockValues];
        const float error = Quantise(levels, values.x + j * sub_block, values.w + j * sub_block, sub_block,
                                     stored * static_cast<float>(clamped), 0, q);
        if (error < least || scale == nearest - 1) {
          least = error;
          out->scale[j] = static_cast<uint8_t>(clamped + scales.bias);
          std::memcpy(out->q + j * sub_block, q, sub_block);
        }
      }
      total += least;
    }
    return total;
  };
  float least = encode(extreme / static_cast<float>(scales.lo), codes);
  // d for the integers as they are, by least squares; kept where it is better after all roundings.
  for (int again = 0; again < 2; ++again) {
    double xl = 0, ll = 0;
    for (int i = 0; i < 256; ++i) {
      const int scale = static_cast<int8_t>(static_cast<uint8_t>(codes->scale[i / sub_block] - scales.bias));
      float level;
      if constexpr (std::is_same_v<Levels, IQ4Levels>)
        level = kIQ4Levels[codes->q[i]];
      else
        level = static_cast<float>(codes->q[i]) + levels.lo;
      const double product = static_cast<double>(static_cast<float>(scale) * level);
      xl += static_cast<double>(values.w[i]) * product * static_cast<double>(values.x[i]);
      ll += static_cast<double>(values.w[i]) * product * product;
    }
    if (!(ll > 0)) return;
    BlockCodes other;
    const float error = encode(static_cast<float>(xl / ll), &other);
    if (!(error < least)) return;
    least = error;
    *codes = other;
  }
}

}  // namespace

float FitSymmetric(const float* x, const float* importance, int count, int lo, int hi, uint8_t* q) {
  const Values<256> values(x, importance, count);
  const LinearLevels levels{static_cast<float>(lo), static_cast<float>(hi)};
  const float scale = BestScale(levels, values.x, values.w, count, 0.1f);
  Quantise(levels, values.x, values.w, count, scale, 0, q);
  return scale;
}

AffineFit FitAffine(const float* x, const float* importance, int count, int hi, bool only_below, uint8_t* q) {
  const Values<256> values(x, importance, count);
  const AffineFit fit = BestAffine(values.x, values.w, count, hi, only_below);
  Quantise(LinearLevels{0, static_cast<float>(hi)}, values.x, values.w, count, fit.scale, fit.min, q);
  return fit;
}

void EncodeSymmetric32(const float* x, const float* importance, int lo, int hi, BlockCodes* codes) {
  const Values<32> values(x, importance, 32);
  const LinearLevels levels{static_cast<float>(lo), static_cast<float>(hi)};
  codes->d = ToF16(BestScale(levels, values.x, values.w, 32, 0.1f));
  Quantise(levels, values.x, values.w, 32, F16ToF32(codes->d), 0, codes->q);
}

void EncodeAffine32(const float* x, const float* importance, int hi, BlockCodes* codes) {
  const Values<32> values(x, importance, 32);
  const AffineFit fit = BestAffine(values.x, values.w, 32, hi, false);
  codes->d = ToF16(fit.scale);
  codes->dmin = ToF16(fit.min);
  Quantise(LinearLevels{0, static_cast<float>(hi)}, values.x, values.w, 32, F16ToF32(codes->d),
           F16ToF32(codes->dmin), codes->q);
}

void EncodeSymmetric256(const float* x, const float* importance, int sub_block, int lo, int hi,
                        const SignedScales& scales, BlockCodes* codes) {
  EncodeScaled256(LinearLevels{static_cast<float>(lo), static_cast<float>(hi)}, x, importance, sub_block,
                  0.1f, scales, codes);
}

void EncodeAffine256(const float* x, const float* importance, int sub_block, int hi, int scale_max,
                     BlockCodes* codes) {
  const Values<256> values(x, importance, 256);
  const int num_subs = 256 / sub_block;
  const LinearLevels levels{0, static_cast<float>(hi)};
  AffineFit wanted[kMaxSubBlocks];
  float most_scale = 0, most_min = 0;
  for (int j = 0; j < num_subs; ++j) {
    const int at = j * sub_block;
    wanted[j] = BestAffine(values.x + at, values.w + at, sub_block, hi, true);
    most_scale = std::max(most_scale, wanted[j].scale);
    most_min = std::max(most_min, -wanted[j].min);
  }
  const auto encode = [&](float d, float dmin, BlockCodes* out) {
    out->d = ToF16(d);
    out->dmin = ToF16(dmin);
    const float step = F16ToF32(out->d), min_step = F16ToF32(out->dmin);
    float total = 0;
    for (int j = 0; j < num_subs; ++j) {
      const auto nearest = [&](float value, float unit) {
        return unit > 0 ? static_cast<int>(std::lround(std::clamp(value / unit, 0.0f, 200.0f))) : 0;
      };
      const int scale = nearest(wanted[j].scale, step), min = nearest(-wanted[j].min, min_step);
      float least = std::numeric_limits<float>::infinity();
      bool first = true;
      for (int s = scale - 1; s <= scale + 1; ++s) {
        for (int m = min - 1; m <= min + 1; ++m) {
          const int cs = std::clamp(s, 0, scale_max), cm = std::clamp(m, 0, scale_max);
          uint8_t q[kMaxBlockValues];
          const float error = Quantise(levels, values.x + j * sub_block, values.w + j * sub_block, sub_block,
                                       step * static_cast<float>(cs), -min_step * static_cast<float>(cm), q);
          if (first || error < least) {
            first = false;
            least = error;
            out->scale[j] = static_cast<uint8_t>(cs);
            out->min[j] = static_cast<uint8_t>(cm);
            std::memcpy(out->q + j * sub_block, q, sub_block);
          }
        }
      }
      total += least;
    }
    return total;
  };
  float least =
      encode(most_scale / static_cast<float>(scale_max), most_min / static_cast<float>(scale_max), codes);
  // d and dmin for the integers as they are, by least squares; kept where it is better after all roundings.
  for (int again = 0; again < 2; ++again) {
    double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
    for (int i = 0; i < 256; ++i) {
      const int j = i / sub_block;
      const double w = static_cast<double>(values.w[i]), x_i = static_cast<double>(values.x[i]);
      const double a = codes->scale[j] * codes->q[i], b = -static_cast<double>(codes->min[j]);
      aa += w * a * a;
      ab += w * a * b;
      bb += w * b * b;
      ax += w * a * x_i;
      bx += w * b * x_i;
    }
    const double determinant = aa * bb - ab * ab;
    if (!(aa > 0)) return;
    const bool both = bb > 0 && determinant > 1e-9 * aa * bb;
    const double d = both ? (ax * bb - bx * ab) / determinant : ax / aa;
    const double dmin = both ? (aa * bx - ab * ax) / determinant : static_cast<double>(F16ToF32(codes->dmin));
    if (!(d > 0) || dmin < 0) return;
    BlockCodes other;
    const float error = encode(static_cast<float>(d), static_cast<float>(dmin), &other);
    if (!(error < least)) return;
    least = error;
    *codes = other;
  }
}

void EncodeLevels32(const float* x, const float* importance, BlockCodes* codes) {
  const Values<32> values(x, importance, 32);
  const IQ4Levels levels;
  codes->d = ToF16(BestScale(levels, values.x, values.w, 32, 3.0f));
  Quantise(levels, values.x, values.w, 32, F16ToF32(codes->d), 0, codes->q);
}

void EncodeLevels256(const float* x, const float* importance, const SignedScales& scales, BlockCodes* codes) {
  EncodeScaled256(IQ4Levels{}, x, importance, 32, 3.0f, scales, codes);
}

}  // namespace cachalot
