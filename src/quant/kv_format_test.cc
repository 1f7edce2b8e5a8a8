#include "quant/kv_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "quant/kv_rotate.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr KvCode kCodes[] = {KvCode::kInt4, KvCode::kInt6, KvCode::kInt8, KvCode::kE4M3};

std::vector<float> Normal(int64_t count, uint32_t seed, float deviation = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = normal(rng);
  return x;
}

struct Encoded {
  std::vector<uint8_t> main, high;
  std::vector<uint16_t> scales;
};

Encoded Encode(const KvCoding& coding, const std::vector<float>& x) {
  const KvCodec& codec = KvCodecOf(coding.code);
  Encoded e;
  e.main.resize(static_cast<size_t>(coding.num_units() * codec.main_bytes));
  e.high.resize(static_cast<size_t>(coding.num_units() * codec.high_bytes));
  e.scales.resize(static_cast<size_t>(coding.num_groups()));
  EncodeKvVector(coding, x.data(), e.main.data(), e.high.data(), e.scales.data());
  return e;
}

std::vector<float> RoundTrip(const KvCoding& coding, const std::vector<float>& x) {
  const Encoded e = Encode(coding, x);
  std::vector<float> y(x.size());
  DecodeKvVector(coding, e.main.data(), e.high.data(), e.scales.data(), y.data());
  return y;
}

// The place of every code, by a vector whose value i has code i (mod 64).
TEST(KvCode, Int6Layout) {
  std::vector<float> x(32);
  for (int i = 0; i < 32; ++i) x[static_cast<size_t>(i)] = static_cast<float>(i - 16) * (i % 2 == 0 ? 1.0f : -1.0f);
  x[31] = 31.0f;  // so that the scale is 1
  const Encoded e = Encode({KvCode::kInt6, 32, 32}, x);
  EXPECT_EQ(BF16ToF32(e.scales[0]), 1.0f);
  for (int i = 0; i < 32; ++i) {
    const int code = static_cast<int>(x[static_cast<size_t>(i)]) + 32;
    const int low = i < 16 ? e.main[static_cast<size_t>(i)] & 15 : e.main[static_cast<size_t>(i - 16)] >> 4;
    const int high = e.high[static_cast<size_t>(i % 8)] >> (2 * (i / 8)) & 3;
    EXPECT_EQ(low | high << 4, code) << i;
  }
}

TEST(KvCode, Int4HasNoZeroAndUsesAllSteps) {
  std::vector<float> x(32, 0.0f);
  x[0] = 7.5f, x[1] = -7.5f, x[2] = 0.2f, x[3] = -0.2f, x[16] = 3.4f;
  const Encoded e = Encode({KvCode::kInt4, 32, 32}, x);
  EXPECT_EQ(BF16ToF32(e.scales[0]), 1.0f);
  EXPECT_EQ(e.main[0], 15 | 11 << 4);
  EXPECT_EQ(e.main[1] & 15, 0);
  EXPECT_EQ(e.main[2] & 15, 8);
  EXPECT_EQ(e.main[3] & 15, 7);
}

TEST(KvCode, ErrorIsWithinHalfAStep) {
  for (const KvCode code : kCodes) {
    for (const int32_t dim : {16, 32, 40, 64, 80, 128, 256}) {
      for (const int32_t group : {32, 64, 512}) {
        const KvCoding coding = {code, dim, group};
        const std::vector<float> x = Normal(dim, 7 + static_cast<uint32_t>(dim), 3.0f);
        const std::vector<float> y = RoundTrip(coding, x);
        const Encoded e = Encode(coding, x);
        for (int32_t i = 0; i < dim; ++i) {
          const float scale = BF16ToF32(e.scales[static_cast<size_t>(i / group)]);
          const float at = std::fabs(x[static_cast<size_t>(i)]);
          const float half_step = code == KvCode::kE4M3 ? std::max(at / 16.0f, scale * 0x1p-10f) : scale / 2;
          EXPECT_LE(std::fabs(x[static_cast<size_t>(i)] - y[static_cast<size_t>(i)]), half_step * 1.0001f)
              << KvCodecOf(code).name << " dim " << dim << " group " << group << " at " << i;
        }
      }
    }
  }
}

TEST(KvCode, WhatIsNoNumberSpoilsItselfOnly) {
  for (const KvCode code : kCodes) {
    const KvCoding coding = {code, 64, 32};
    std::vector<float> x = Normal(64, 3);
    const std::vector<float> want = RoundTrip(coding, x);
    x[5] = kNan;  // not the largest of its group, so its neighbours stay as they were
    const std::vector<float> got = RoundTrip(coding, x);
    for (size_t i = 0; i < 64; ++i) {
      EXPECT_TRUE(std::isfinite(got[i]));
      if (i == 5) continue;
      EXPECT_EQ(got[i], want[i]) << KvCodecOf(code).name << " " << i;
    }
    for (const float bad : {kInf, -kInf, 3e38f, -3e38f}) {
      x[5] = bad;
      const std::vector<float> y = RoundTrip(coding, x);
      for (size_t i = 0; i < 64; ++i) {
        EXPECT_TRUE(std::isfinite(y[i]));
        if (i < 32) continue;
        EXPECT_EQ(y[i], want[i]);  // the other group
      }
      EXPECT_NEAR(y[5] / std::copysign(kKvLargest, bad), 1.0f, 0.01f);
    }
  }
}

TEST(KvCode, ZerosAndTinyValuesAreZero) {
  for (const KvCode code : kCodes) {
    for (const float tiny : {0.0f, 1e-40f, -1e-38f}) {
      for (const float y : RoundTrip({code, 64, 64}, std::vector<float>(64, tiny))) EXPECT_EQ(y, 0.0f);
    }
  }
}

TEST(KvRotate, TwiceIsTheLength) {
  for (const int32_t dim : {1, 13, 16, 40, 64, 80, 96, 128, 192, 256, 512}) {
    const int32_t length = KvRotationLength(dim);
    EXPECT_EQ(dim % length, 0);
    std::vector<float> x = Normal(dim, 11), a = x;
    const std::vector<float> q = Normal(dim, 12);
    std::vector<float> b = q;
    RotateKv(a.data(), dim, length);
    RotateKv(b.data(), dim, length);
    double plain = 0, rotated = 0;
    for (size_t i = 0; i < x.size(); ++i) plain += double{x[i]} * q[i], rotated += double{a[i]} * b[i];
    EXPECT_NEAR(rotated / length, plain, 1e-4 * dim);
    RotateKv(a.data(), dim, length);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(a[i] / static_cast<float>(length), x[i], 1e-5);
  }
  EXPECT_EQ(KvRotationLength(80), 16);
  EXPECT_EQ(KvRotationLength(96), 32);
  EXPECT_EQ(KvRotationLength(512), 128);
}

TEST(KvRotate, HandWorked) {
  float x[] = {1, 2, 3, 5};
  RotateKv(x, 4, 4);
  const float want[] = {11, -3, -5, 1};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(x[i], want[i]);
}

// What a token of head dimension 128 takes, with its scales: the figures of the docs.
TEST(KvFormat, Bytes) {
  const auto bytes = [](const char* name, const KvVectors& vectors) {
    return PlanKvPlanes(FindKvFormat(name)->scheme, vectors, 16).token_bytes();
  };
  const KvVectors head = {128, 128, 0, false}, latent = {576, 512, 64, true};
  EXPECT_EQ(bytes("k8v8", head), 130 + 130);
  EXPECT_EQ(bytes("k6v8", head), 98 + 130);
  EXPECT_EQ(bytes("fp8", head), 130 + 130);
  EXPECT_EQ(bytes("k6v4", head), 98 + 72);
  EXPECT_EQ(bytes("k4v4", head), 72 + 72);
  EXPECT_EQ(bytes("k6v8", latent), 384 + 8 + 128);
  EXPECT_EQ(bytes("fp8", latent), 512 + 8 + 128);
  EXPECT_EQ(FindKvFormat("k5v5"), nullptr);
}

// Tokens written one by one, in any order, give the same bytes; a token's write touches no other token's bytes.
TEST(KvFormat, TokensAreIndependent) {
  for (const KvFormat& format : KvFormats()) {
    for (const KvVectors& vectors : {KvVectors{64, 64, 0, false}, KvVectors{80, 40, 0, false}, KvVectors{72, 64, 8, true}}) {
      for (const int32_t block_tokens : {1, 16, 24}) {
        const KvPlanes planes = PlanKvPlanes(format.scheme, vectors, block_tokens);
        EXPECT_EQ(planes.head_bytes % 16, 0);
        for (const int64_t at : {planes.key.main, planes.key.high, planes.key.scales, planes.exact, planes.value.main,
                                 planes.value.scales}) {
          EXPECT_EQ(at % 16, 0);
        }
        const std::vector<float> mean = Normal(vectors.k_dim, 5);
        const auto write = [&](std::vector<std::byte>* region, int32_t token) {
          std::vector<float> key = Normal(vectors.k_dim, 100 + static_cast<uint32_t>(token));
          const std::vector<float> value = Normal(vectors.v_dim, 200 + static_cast<uint32_t>(token));
          EncodeKvKey(planes, mean.data(), key.data(), region->data(), token);
          if (!planes.value_in_key) EncodeKvValue(planes, value.data(), region->data(), token);
        };
        std::vector<std::byte> forward(static_cast<size_t>(planes.head_bytes), std::byte{0xee}), backward = forward;
        for (int32_t t = 0; t < block_tokens; ++t) write(&forward, t);
        for (int32_t t = block_tokens - 1; t >= 0; --t) write(&backward, t), write(&backward, t);
        EXPECT_EQ(forward, backward) << format.name;
        std::vector<float> key(static_cast<size_t>(vectors.k_dim)), value(static_cast<size_t>(vectors.v_dim));
        for (int32_t t = 0; t < block_tokens; ++t) {
          DecodeKvKey(planes, mean.data(), forward.data(), t, key.data());
          DecodeKvValue(planes, mean.data(), forward.data(), t, value.data());
          const std::vector<float> k = Normal(vectors.k_dim, 100 + static_cast<uint32_t>(t));
          const std::vector<float> v = vectors.value_in_key ? k : Normal(vectors.v_dim, 200 + static_cast<uint32_t>(t));
          for (size_t i = 0; i < key.size(); ++i) EXPECT_NEAR(key[i], k[i], 0.9) << format.name;
          for (size_t i = 0; i < value.size(); ++i) EXPECT_NEAR(value[i], v[i], 0.9) << format.name;
        }
      }
    }
  }
}

// RMS error of a normalised key with outlier channels around a mean: rotation and mean removal give INT6 the error it
// has on bell-shaped values, which is E4M3's.
TEST(KvFormat, RotationAndMeanAgainstOutliers) {
  constexpr int32_t kDim = 128, kTokens = 400;
  std::vector<float> mean(kDim, 0.0f);
  for (const int32_t i : {3, 17, 64, 99}) mean[static_cast<size_t>(i)] = 8.0f;
  const auto error = [&](bool rotate, bool with_mean) {
    KvScheme scheme = FindKvFormat("k6v8")->scheme;
    scheme.rotate = rotate;
    const KvPlanes planes = PlanKvPlanes(scheme, {kDim, kDim, 0, false}, 1);
    std::vector<std::byte> region(static_cast<size_t>(planes.head_bytes));
    double squares = 0;
    for (int32_t t = 0; t < kTokens; ++t) {
      std::vector<float> key = Normal(kDim, static_cast<uint32_t>(t));
      for (int32_t i = 0; i < kDim; ++i) key[static_cast<size_t>(i)] += mean[static_cast<size_t>(i)];
      const std::vector<float> want = key;
      std::vector<float> got(kDim);
      EncodeKvKey(planes, with_mean ? mean.data() : nullptr, key.data(), region.data(), 0);
      DecodeKvKey(planes, with_mean ? mean.data() : nullptr, region.data(), 0, got.data());
      for (size_t i = 0; i < kDim; ++i) squares += (got[i] - want[i]) * (got[i] - want[i]);
    }
    return std::sqrt(squares / (kDim * kTokens));
  };
  EXPECT_NEAR(error(true, true), 0.0265, 0.001);
  EXPECT_GT(error(false, false), 0.08);
  EXPECT_LT(error(true, false), 0.05);
}

}  // namespace
}  // namespace cachalot
