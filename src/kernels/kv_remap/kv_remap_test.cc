// KvRemap against plain formulas: every code and scale, every dim's tail, groups, rotation, tables; the same bits from every
// instruction set; nothing written but what should be.
#include "kernels/kv_remap/kv_remap.h"

#include <gtest/gtest.h>

#include "kernels/kv_remap/kv_remap_testing.h"

namespace cachalot {
namespace {

TEST(KvRemap, HandWorkedCodes) {
  const auto values = [](KvRemapCode code, std::vector<uint8_t> main, std::vector<uint8_t> high, float zero, int32_t dim) {
    RemapCase c = RemapCase::OneRow(code, dim, zero);
    c.SetRow(main, high, {});
    std::vector<float> all;
    for (const Isa isa : TestableIsas()) {
      const std::vector<uint16_t> bits = c.Run(isa);
      std::vector<float> x;
      for (int32_t i = 0; i < dim; ++i) x.push_back(F16ToF32(bits[static_cast<size_t>(i)]));
      if (!all.empty()) {
        EXPECT_EQ(all, x);
      }
      all = x;
    }
    return all;
  };
  // Low half first; an odd number of values leaves a half unused.
  EXPECT_EQ(values(KvRemapCode::kInt4, {0x18, 0xf0, 0x97}, {}, 8, 5), (std::vector<float>{0, -7, -8, 7, -1}));
  // Codes 1, 2, 3, 63: 63 << 18 | 3 << 12 | 2 << 6 | 1; then 32.
  EXPECT_EQ(values(KvRemapCode::kInt6, {0x81, 0x30, 0xfc, 0x20}, {}, 32, 5), (std::vector<float>{-31, -30, -29, 31, 0}));
  EXPECT_EQ(values(KvRemapCode::kInt8, {0x80, 0xff, 0x7f}, {}, 0, 3), (std::vector<float>{-128, -1, 127}));
  // 1, -448, the smallest, both codes of no number.
  EXPECT_EQ(values(KvRemapCode::kE4M3, {0x38, 0xfe, 0x01, 0x7f, 0xff}, {}, 0, 5), (std::vector<float>{1, -448, 0x1p-9f, 0, 0}));
  // F16: 1, infinity, -infinity, no number.
  EXPECT_EQ(values(KvRemapCode::kF16, {0, 0x3c, 0, 0x7c, 0, 0xfc, 1, 0x7e}, {}, 0, 4), (std::vector<float>{1, 65504, -65504, 0}));
  std::vector<uint8_t> main(16, 0), high(8, 0);
  main[0] = 0x21, high[0] = 0b11100100;  // values 0, 16: 1 and 2; of the top 0, 1 (value 8), 2 (value 16), 3 (value 24)
  std::vector<float> want(32, -32.0f);
  want[0] = 1 - 32, want[8] = 16 - 32, want[16] = 2 + 32 - 32, want[24] = 48 - 32;
  EXPECT_EQ(values(KvRemapCode::kInt6Unit, main, high, 32, 32), want);
}

TEST(KvRemap, RandomRowsEqualTheFormulas) {
  TestRng rng(7);
  for (const KvRemapCode code : kRemapCodes) {
    for (const int32_t dim : {1, 7, 8, 16, 20, 31, 33, 64, 80, 128, 200, 256, 576, 1024}) {
      for (const KvRemapScale scale : kRemapScales) {
        for (const bool bf16 : {false, true}) {
          RemapCase c = RemapCase::Random(&rng, {.code = code, .scale = scale, .dim = dim, .to_bf16 = bf16});
          SCOPED_TRACE(c.Name());
          const std::vector<float> want = c.Want();
          std::vector<uint16_t> first;
          for (const Isa isa : TestableIsas()) {
            const std::vector<uint16_t> got = c.Run(isa);
            ASSERT_TRUE(c.Intact());
            if (!first.empty()) {
              ASSERT_EQ(first, got) << IsaName(isa);
            }
            first = got;
          }
          ASSERT_EQ(c.FirstWrong(first, want), "");
        }
      }
    }
  }
}

TEST(KvRemap, TablesArePermutedRaggedAndOfAnyPage) {
  TestRng rng(11);
  for (const int32_t from_page : {0, 1, 16, 48}) {
    for (const int32_t to_page : {0, 1, 16, 7}) {
      if (to_page == 0 && from_page != 0) continue;
      for (const bool nhd : {false, true}) {
        RemapCase c = RemapCase::Random(&rng, {.code = KvRemapCode::kInt6Unit, .scale = KvRemapScale::kBF16, .dim = 64, .heads = 3,
                                               .lengths = {0, 1, 16, 37, 48}, .from_page = from_page, .to_page = to_page, .nhd = nhd,
                                               .rotated = true});
        SCOPED_TRACE(c.Name());
        const std::vector<float> want = c.Want();
        for (const Isa isa : TestableIsas()) {
          ASSERT_EQ(c.FirstWrong(c.Run(isa), want), "") << IsaName(isa);
          ASSERT_TRUE(c.Intact());
        }
      }
    }
  }
}

TEST(KvRemap, TablesThatLieAreRefusedBeforeAnythingIsWritten) {
  TestRng rng(13);
  const auto fails = [&](auto&& spoil) {
    RemapCase c = RemapCase::Random(&rng, {.code = KvRemapCode::kInt8, .scale = KvRemapScale::kBF16, .dim = 32, .heads = 2,
                                           .lengths = {20, 5, 33}, .from_page = 16, .to_page = 8});
    spoil(c);
    const TestContext context(Isa::kRef);
    const Status status = KvRemap(context, c.Params());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
    EXPECT_TRUE(c.Untouched());
  };
  fails([](RemapCase& c) { c.to.indptr[1] = -1; });
  fails([](RemapCase& c) { c.to.indptr[0] = -4; });
  fails([](RemapCase& c) { c.to.indptr[3] += 1; });
  fails([](RemapCase& c) { c.from.indptr[2] = 0x7fffffff; });
  fails([](RemapCase& c) { c.from.indptr[2] = 0; });
  fails([](RemapCase& c) { c.from.indices[0] = -1; });
  fails([](RemapCase& c) { c.from.indices[3] = 1 << 20; });
  fails([](RemapCase& c) { c.to.last_page[0] = 0; });
  fails([](RemapCase& c) { c.to.last_page[1] = 9; });
  fails([](RemapCase& c) { c.from.last_page[1] = 6; });  // another length
}

}  // namespace
}  // namespace cachalot
