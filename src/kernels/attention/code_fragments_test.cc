// A warp put together on the host from what its lanes load and take apart: scores and weighted sums of 16 tokens, as mma defines its
// operands, against the values that the codes stand for. What the kernels over quantised caches do beside is arithmetic.
#include "kernels/attention/code_fragments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/attention/latent_tile.h"
#include "kernels/common/testing.h"
#include "quant/fp8_e4m3.h"
#include "quant/kv_format.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

uint32_t WordAt(const std::byte* from) {
  uint32_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}
uint16_t HalfWordAt(const std::byte* from) {
  uint16_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// A region of one block with random tokens.
struct Region {
  KvPlanes planes;
  std::vector<std::byte> bytes;
  Region(KvCode key, KvCode value, int dim, int block_tokens, int seed) {
    const auto group = [](KvCode code) { return code == KvCode::kInt4 ? 32 : 0; };
    planes = PlanKvPlanes({.key = key, .value = value, .key_group = group(key), .value_group = group(value), .rotate = true}, {dim, dim, 0, false},
                          block_tokens);
    bytes.resize(static_cast<size_t>(planes.head_bytes));
    TestRng rng(static_cast<uint64_t>(seed));
    for (int t = 0; t < block_tokens; ++t) {
      std::vector<float> k = rng.NormalVector(dim, 3.0f), v = rng.NormalVector(dim, 0.1f);
      EncodeKvKey(planes, nullptr, k.data(), bytes.data(), t);
      EncodeKvValue(planes, v.data(), bytes.data(), t);
    }
  }
};

// Sums of the query's bytes times the codes of tokens first .. first + 15, by the lanes' operands: [16 tokens][groups].
template <KvCode kCode, int kDim>
std::vector<std::vector<int>> Sums(const Region& region, int first, const std::vector<int8_t>& query) {
  using Key = KeyFragments<kCode, kDim>;
  std::vector<std::vector<int>> sums(kRunTokens, std::vector<int>(Key::kGroups));
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, quad = lane % 4;
    for (int tile = 0; tile < 2; ++tile) {
      const int token = first + TokenOf(tile, g);
      const std::byte* main = region.bytes.data() + region.planes.key.main + token * Key::kRowBytes;
      const std::byte* high = region.bytes.data() + region.planes.key.high + token * Key::kHighRowBytes;
      uint32_t words[Key::kWords], tops[2] = {};
      for (int w = 0; w < Key::kWords; ++w) words[w] = WordAt(main + Key::MainOffset(quad, w));
      for (int w = 0; w < Key::kHighWords; ++w) tops[w] = WordAt(high + Key::HighOffset(quad, w));
      for (int step = 0; step < Key::kSteps; ++step) {
        const OperandB b = Key::Take(words, tops, quad, step);
        for (int half = 0; half < 2; ++half) {
          for (int c = 0; c < 4; ++c) {
            const auto byte = static_cast<uint8_t>((half == 0 ? b.low : b.high) >> (8 * c));
            const int code = Key::kSigned ? static_cast<int8_t>(byte) : byte;
            const int value = Key::ValueOf(quad, step, half, c);
            sums[TokenOf(tile, g)][Key::kGrouped ? step : 0] += query[static_cast<size_t>(value)] * (code - Key::kBias);
          }
        }
      }
    }
  }
  return sums;
}

template <KvCode kCode, int kDim>
void CheckKeys() {
  using Key = KeyFragments<kCode, kDim>;
  const Region region(kCode, KvCode::kE4M3, kDim, 48, kDim + static_cast<int>(kCode));
  ASSERT_EQ(region.planes.key.main_row, Key::kRowBytes);
  ASSERT_EQ(region.planes.key.high_row, Key::kHighRowBytes);
  ASSERT_EQ(region.planes.key.scale_row, 2 * Key::kGroups);
  TestRng rng(5);
  std::vector<int8_t> query(kDim);
  for (int8_t& q : query) q = static_cast<int8_t>(rng.Int(-127, 127));
  for (int first = 0; first < 48; first += kRunTokens) {
    const auto sums = Sums<kCode, kDim>(region, first, query);
    for (int t = 0; t < kRunTokens; ++t) {
      std::vector<float> stored(kDim);
      DecodeKvRows(region.planes.key, const_cast<std::byte*>(region.bytes.data()), first + t, stored.data());
      double want = 0, got = 0;
      for (int d = 0; d < kDim; ++d) want += double{stored[static_cast<size_t>(d)]} * query[static_cast<size_t>(d)];
      for (int group = 0; group < Key::kGroups; ++group) {
        const std::byte* scale = region.bytes.data() + region.planes.key.scales + (first + t) * 2 * Key::kGroups + 2 * group;
        got += sums[static_cast<size_t>(t)][static_cast<size_t>(group)] * double{Key::kStep} * BF16ToF32(HalfWordAt(scale));
      }
      EXPECT_NEAR(got, want, 1e-9 * std::fabs(want) + 1e-9) << "dim " << kDim << " code " << static_cast<int>(kCode) << " token " << first + t;
    }
  }
}

TEST(CodeFragments, ScoresAreThoseOfTheCodes) {
  CheckKeys<KvCode::kInt8, 128>();
  CheckKeys<KvCode::kInt8, 64>();
  CheckKeys<KvCode::kInt6, 128>();
  CheckKeys<KvCode::kInt6, 64>();
  CheckKeys<KvCode::kInt4, 128>();
  CheckKeys<KvCode::kInt4, 64>();
}

// E4M3 keys meet F16 queries, 16 values a step: word w's bytes 0, 1 and 2, 3 are the operand's registers, and the query's values lie where
// MainOffset says.
TEST(CodeFragments, EveryByteOfAKeyIsTakenOnce) {
  std::vector<int> words(4 * 128);
  for (int i = 0; i < 4 * 128; ++i) ++words[static_cast<size_t>(QueryWord(i % 16, i / 16 % 4, i / 128, i / 64 % 2))];
  for (int n : words) EXPECT_EQ(n, 1);
  const auto check = [](auto key, int dim) {
    using Key = decltype(key);
    std::vector<int> bytes(static_cast<size_t>(Key::kRowBytes)), values(static_cast<size_t>(dim)), highs(static_cast<size_t>(Key::kHighRowBytes));
    for (int quad = 0; quad < 4; ++quad) {
      for (int w = 0; w < Key::kWords; ++w) {
        for (int i = 0; i < 4; ++i) ++bytes[static_cast<size_t>(Key::MainOffset(quad, w) + i)];
      }
      for (int w = 0; w < Key::kHighWords; ++w) {
        for (int i = 0; i < 4; ++i) ++highs[static_cast<size_t>(Key::HighOffset(quad, w) + i)];
      }
      for (int step = 0; step < Key::kSteps; ++step) {
        for (int i = 0; i < 8; ++i) ++values[static_cast<size_t>(Key::ValueOf(quad, step, i / 4, i % 4))];
      }
    }
    for (int value = 0; value < dim; value += 4) {
      EXPECT_EQ(Key::ValueOf(Key::QuadOf(value), Key::StepOf(value), Key::HalfOf(value), 0), value) << dim;
    }
    for (int n : bytes) EXPECT_EQ(n, 1) << dim;
    for (int n : values) EXPECT_EQ(n, 1) << dim;
    for (int n : highs) EXPECT_EQ(n, dim == 64 ? 2 : 1) << dim;
  };
  check(KeyFragments<KvCode::kE4M3, 128>(), 128);
  check(KeyFragments<KvCode::kE4M3, 64>(), 64);
  check(KeyFragments<KvCode::kInt8, 128>(), 128);
  check(KeyFragments<KvCode::kInt6, 128>(), 128);
  check(KeyFragments<KvCode::kInt6, 64>(), 64);
  check(KeyFragments<KvCode::kInt4, 128>(), 128);
  check(KeyFragments<KvCode::kInt4, 64>(), 64);
}

template <KvCode kCode, int kDim>
void CheckValues() {
  using Value = ValueFragments<kCode, kDim>;
  const Region region(KvCode::kInt8, kCode, kDim, 32, kDim + static_cast<int>(kCode));
  ASSERT_EQ(region.planes.value.main_row, Value::kRowBytes);
  ASSERT_EQ(region.planes.value.scale_row, 2 * Value::kGroups);
  const std::byte* base = region.bytes.data();
  std::vector<int> seen(kDim);
  for (int first = 0; first < 32; first += kRunTokens) {
    std::vector<std::vector<float>> stored(kRunTokens, std::vector<float>(kDim));
    for (int t = 0; t < kRunTokens; ++t) {
      DecodeKvRows(region.planes.value, const_cast<std::byte*>(base), first + t, stored[static_cast<size_t>(t)].data());
    }
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, quad = lane % 4;
      const auto word_of = [&](int i, int w) {
        return WordAt(base + region.planes.value.main + (first + 4 * quad + i) * Value::kRowBytes + Value::Offset(g) + 4 * w);
      };
      const auto scale_of = [&](int i) {
        return BF16ToF32(HalfWordAt(base + region.planes.value.scales + (first + 4 * quad + i) * 2 * Value::kGroups + 2 * Value::GroupOf(g)));
      };
      // Register 0 of B holds rows (tokens) 2 quad and 2 quad + 1 of the sixteen, which TokenOf makes this lane's first two; register 1 the
      // other two.
      for (int pair = 0; pair < 2; ++pair) {
        EXPECT_EQ(TokenOf(pair, 2 * quad), 4 * quad + 2 * pair);
        EXPECT_EQ(TokenOf(pair, 2 * quad + 1), 4 * quad + 2 * pair + 1);
        for (int w = 0; w < Value::kWords; ++w) {
          const uint32_t a = word_of(2 * pair, w), b = word_of(2 * pair + 1, w);
          for (int i = 0; i < (kCode == KvCode::kE4M3 ? 4 : 8); ++i) {
            float code[2];
            if constexpr (kCode == KvCode::kE4M3) {
              const uint32_t halves = Value::BytePairs(a, b, i / 2) >> (16 * (i % 2));
              code[0] = FP8E4M3ToF32(static_cast<uint8_t>(halves)), code[1] = FP8E4M3ToF32(static_cast<uint8_t>(halves >> 8));
            } else {
              const uint32_t halves = Value::HalfPair(a, b, i);
              const float by = i < 4 ? 0x1p24f : 0x1p20f;
              for (int e = 0; e < 2; ++e) code[e] = F16ToF32(static_cast<uint16_t>(halves >> (16 * e))) * by - 8 - Value::kOffset;
            }
            const int d = Value::ColumnOf(g, Value::TileOf(w, i));
            ASSERT_TRUE(d >= 0 && d < kDim);
            ++seen[static_cast<size_t>(d)];
            for (int e = 0; e < 2; ++e) {
              EXPECT_EQ(code[e] * scale_of(2 * pair + e), stored[static_cast<size_t>(4 * quad + 2 * pair + e)][static_cast<size_t>(d)])
                  << "dim " << kDim << " lane " << lane << " word " << w << " of tile " << Value::TileOf(w, i);
            }
          }
        }
      }
    }
  }
  for (int n : seen) EXPECT_EQ(n, 2 * 4 * 2) << "every value, of each pair of tokens, once";
  for (int g = 0; g < 8; ++g) {
    for (int j = 0; j < Value::kTiles; ++j) EXPECT_EQ(Value::ColumnOf(g, j), Value::ColumnOf(g, j / 4 * 4) + j % 4) << "four tiles side by side";
  }
}

TEST(CodeFragments, ValuesAreThoseOfTheCodes) {
  CheckValues<KvCode::kE4M3, 128>();
  CheckValues<KvCode::kE4M3, 64>();
  CheckValues<KvCode::kInt4, 128>();
  CheckValues<KvCode::kInt4, 64>();
}

// A tile of latents taken apart by the 128 threads of a warpgroup is what the codes stand for, every value once; and eight threads in a
// row write to different banks.
template <KvCode kCode>
void CheckLatents(int group) {
  using Code = LatentCode<kCode>;
  const KvPlanes planes = PlanKvPlanes({.key = kCode, .value = kCode, .latent_group = group, .rotate = true},
                                       {kLatentDim + kExactDim, kLatentDim, kExactDim, true}, kLatentTokens);
  ASSERT_EQ(planes.key.main_row, Code::kRowBytes);
  ASSERT_EQ(planes.key.high_row, Code::kHighRowBytes);
  std::vector<std::byte> region(static_cast<size_t>(planes.head_bytes));
  TestRng rng(static_cast<uint64_t>(kCode));
  for (int t = 0; t < kLatentTokens; ++t) {
    std::vector<float> key = rng.NormalVector(kLatentDim + kExactDim);
    EncodeKvKey(planes, nullptr, key.data(), region.data(), t);
  }
  const int groups = planes.key.coding.num_groups();
  std::vector<int> seen(kLatentTokens * kLatentDim), exact_seen(kLatentTokens * kExactDim / 8);
  std::vector<std::vector<float>> stored(kLatentTokens, std::vector<float>(kLatentDim));
  for (int t = 0; t < kLatentTokens; ++t) DecodeKvRows(planes.key, region.data(), t, stored[static_cast<size_t>(t)].data());
  for (int thread = 0; thread < 128; ++thread) {
    for (int run = 0; run < kLatentRuns; ++run) {
      const int token = run * kRunTokens + LatentTokenOf(thread);
      ++exact_seen[static_cast<size_t>((run * kRunTokens + ExactTokenOf(thread)) * (kExactDim / 8) + ExactPieceOf(thread))];
      for (int half = 0; half < 2; ++half) {
        const int unit = LatentUnitOf(thread, half);
        uint32_t main[Code::kWords], high[2] = {};
        const std::byte* of_unit = region.data() + planes.key.main + token * Code::kRowBytes + unit * Code::kUnitBytes;
        for (int w = 0; w < Code::kWords; ++w) main[w] = WordAt(of_unit + 4 * w);
        for (int w = 0; w < Code::kHighWords; ++w) high[w] = WordAt(region.data() + planes.key.high + token * Code::kHighRowBytes + unit * 8 + 4 * w);
        const float scale = BF16ToF32(HalfWordAt(region.data() + planes.key.scales + (token * groups + unit * groups / kLatentRowUnits) * 2));
        for (int i = 0; i < 8; ++i) {
          const uint32_t bytes = Code::BytesOf(main, high, i);
          for (int c = 0; c < 4; ++c) {
            float code;
            if constexpr (kCode == KvCode::kE4M3) {
              code = FP8E4M3ToF32(static_cast<uint8_t>(bytes >> (8 * c)));
            } else {
              const uint32_t pair = Code::HalfPair(bytes, c / 2 != 0) >> (16 * (c % 2));
              code = F16ToF32(static_cast<uint16_t>(pair)) - F16ToF32(static_cast<uint16_t>(Code::kOffset));
            }
            const int d = unit * kKvUnit + 4 * i + c;
            ++seen[static_cast<size_t>(token * kLatentDim + d)];
            ASSERT_EQ(code * Code::kStep * scale, stored[static_cast<size_t>(token)][static_cast<size_t>(d)])
                << "token " << token << " value " << d << " code " << static_cast<int>(kCode);
          }
        }
      }
    }
  }
  for (int n : seen) ASSERT_EQ(n, 1);
  for (int n : exact_seen) ASSERT_EQ(n, 1);
  for (int first = 0; first < 128; first += 8) {
    for (int half = 0; half < 2; ++half) {
      int banks = 0, exact_banks = 0;
      for (int thread = first; thread < first + 8; ++thread) {
        banks |= 1 << (LatentUnitOf(thread, half) * 4 % 8 ^ (LatentTokenOf(thread) & 7));
        exact_banks |= 1 << (ExactPieceOf(thread) ^ (ExactTokenOf(thread) & 7));
      }
      EXPECT_EQ(banks, 0xff);
      EXPECT_EQ(exact_banks, 0xff);
    }
  }
}

TEST(CodeFragments, LatentsAreThoseOfTheCodes) {
  CheckLatents<KvCode::kInt8>(128);
  CheckLatents<KvCode::kInt6>(128);
  CheckLatents<KvCode::kInt6>(64);
  CheckLatents<KvCode::kInt4>(32);
  CheckLatents<KvCode::kE4M3>(128);
  CheckLatents<KvCode::kInt6>(0);
}

}  // namespace
}  // namespace cachalot
