#include "kernels/matmul/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/memory_streams.h"
#include "kernels/matmul/matmul_testing.h"
#include "quant/block_codes.h"
#include "tensor/float_convert.h"

namespace cachalot {
namespace {

std::vector<Isa> FastIsas() {
  std::vector<Isa> isas = TestableIsas();
  isas.erase(isas.begin());
  return isas;
}

std::vector<int64_t> DepthsFor(DType dtype) {
  if (GetDTypeInfo(dtype).block_size == 256) return {256, 768};
  if (IsQuantized(dtype)) return {32, 64, 96, 160, 576};
  return {1, 7, 32, 33, 128, 160, 576};
}

// x as the fast variants take it: block formats meet activations of 8 bits, a scale for each 32.
std::vector<float> AsTheKernelsReadIt(std::vector<float> x, int64_t stride, int64_t k, DType dtype) {
  if (!IsQuantized(dtype)) return x;
  for (size_t row = 0; row + k <= x.size(); row += stride) {
    for (int64_t k0 = 0; k0 < k; k0 += 32) {
      float* block = x.data() + row + k0;
      float largest = 0;
      for (int j = 0; j < 32; ++j) largest = std::max(largest, std::fabs(block[j]));
      const float inverse = largest != 0 ? 127.0f / largest : 0.0f;
      for (int j = 0; j < 32; ++j) block[j] = std::nearbyint(block[j] * inverse) * (largest / 127.0f);
    }
  }
  return x;
}

std::vector<float> Product(const ExecContext& ctx, const PackedMatrix& weight, const float* x, int64_t m) {
  std::vector<float> y(m * weight.n);
  Matmul(ctx, {.x = x, .x_stride = weight.k, .m = m, .weight = &weight, .y = y.data(), .y_stride = weight.n});
  return y;
}

TEST(MatmulRef, ByHand) {
  // W = [1 2; 3 4; -1 0.5], x = [2 10] → 22, 46, 3
  const float w[] = {1, 2, 3, 4, -1, 0.5f};
  const float x[] = {2, 10};
  const float bias[] = {0.5f, 0, -1};
  const MatrixPart part{DType::kF32, 3, reinterpret_cast<const std::byte*>(w), nullptr};
  for (Isa isa : TestableIsas()) {
    const PackedMatrix weight = PackMatrix({&part, 1}, 2, {.isa = isa}).value();
    TestContext ctx(isa);
    std::vector<float> y = {100, 200, 300};
    MatmulParams params = {.x = x, .x_stride = 2, .m = 1, .weight = &weight, .y = y.data(), .y_stride = 3};
    Matmul(ctx, params);
    EXPECT_EQ(y, (std::vector<float>{22, 46, 3}));
    params.bias = bias;
    params.accumulate = true;
    Matmul(ctx, params);
    EXPECT_EQ(y, (std::vector<float>{44.5f, 92, 5}));
  }
}

TEST(MatmulRef, IsTheDefinition) {
  TestRng rng(2);
  for (const QuantFormat& format : AllQuantFormats()) {
    const int64_t k = WholeBlocks(format.dtype, 160);
    const TestWeight w(format.dtype, 19, k, 3);
    const PackedMatrix weight = w.Pack(Isa::kRef);
    ASSERT_EQ(weight.layout, PackLayout::kRowMajor);
    TestContext ctx(Isa::kRef, 2);
    const std::vector<float> x = rng.NormalVector(5 * k);
    EXPECT_EQ(FirstBitDifference(Product(ctx, weight, x.data(), 5), Definition(x, w.Decoded(), 5, 19, k)),
              "");
    EXPECT_EQ(ctx.counters().generic_calls, 0);  // asked for, not fallen back to
    EXPECT_EQ(ctx.counters().weight_bytes, weight.data_bytes);
  }
}

// Every variant and type against the reference over shapes with the nasty corners; strides, bias,
// accumulation; nothing written beside the rows.
TEST(Matmul, AgreesWithTheReference) {
  TestRng rng(4);
  TestContext reference(Isa::kRef, 2);
  int64_t num_cases = 0;
  for (const QuantFormat& format : AllQuantFormats()) {
    // The rounding of x is known, so what remains is as close as for F32.
    const Tolerance tolerance = ToleranceFor(OpClass::kMatmul, DType::kF32);
    for (int64_t k : DepthsFor(format.dtype)) {
      for (int64_t n : {1, 7, 8, 15, 16, 17, 48, 100}) {
        if (k > 600 && (n == 7 || n == 8 || n == 48)) continue;  // the reference takes its time
        const TestWeight w(format.dtype, n, k, 100 + n + k);
        const PackedMatrix reference_weight = w.Pack(Isa::kRef);
        for (Isa isa : FastIsas()) {
          const PackedMatrix weight = w.Pack(isa);
          ASSERT_EQ(weight.layout, PackLayout::kPanel);
          TestContext ctx(isa, 2);
          for (int64_t m : {0, 1, 2, 3, 5, 6, 7, 8, 13, 33, 64, 130}) {
            if (m > 33 && n != 17 && n != 100) continue;
            // Tiles of codes have 1 to 4 rows.
            if (FindCodeFormat(format.dtype) != nullptr && (m == 6 || m == 7 || m == 64 || m == 130))
              continue;
            const int64_t extra = num_cases % 4;  // odd strides
            const bool with_bias = num_cases % 3 == 0, accumulate = num_cases % 5 == 0;
            ++num_cases;
            const int64_t x_stride = k + extra, y_stride = n + extra;
            const std::vector<float> x = rng.NormalVector(m * x_stride), bias = rng.NormalVector(n);
            const std::vector<float> rounded = AsTheKernelsReadIt(x, x_stride, k, format.dtype);
            const std::vector<float> before = rng.NormalVector(m * y_stride);
            GuardedBuffer<float> got(m * y_stride), want(m * y_stride);
            std::copy(before.begin(), before.end(), got.data());
            std::copy(before.begin(), before.end(), want.data());
            MatmulParams params = {.x = rounded.data(),
                                   .x_stride = x_stride,
                                   .m = m,
                                   .weight = &reference_weight,
                                   .bias = with_bias ? bias.data() : nullptr,
                                   .y = want.data(),
                                   .y_stride = y_stride,
                                   .accumulate = accumulate};
            Matmul(reference, params);
            params.x = x.data();
            params.weight = &weight;
            params.y = got.data();
            Matmul(ctx, params);
            const Comparison comparison = Compare(got.span(), want.span(), tolerance);
            ASSERT_TRUE(comparison.ok) << IsaName(isa) << " " << DTypeName(format.dtype) << " m=" << m
                                       << " n=" << n << " k=" << k << ": " << comparison.message;
            ASSERT_TRUE(got.Intact());
            for (int64_t i = 0; i < m; ++i) {
              for (int64_t j = n; j < y_stride; ++j)
                ASSERT_EQ(got[i * y_stride + j], before[i * y_stride + j]);
            }
          }
          EXPECT_EQ(ctx.counters().generic_calls, 0);
          EXPECT_EQ(ctx.workspace().used(), 0);
        }
      }
    }
  }
}

// Deep enough for k to be cut in pieces, and for FP8 to have a short last block. Against the reference on
// unrounded x: what the rounding of activations costs is within its tolerance too.
TEST(Matmul, DeepMatricesAgreeWithTheReference) {
  TestRng rng(5);
  TestContext reference(Isa::kRef, 2);
  for (const QuantFormat& format : AllQuantFormats()) {
    for (int64_t depth : {1568, 3232}) {
      const int64_t n = 24, m = 140, k = WholeBlocks(format.dtype, depth);
      const TestWeight w(format.dtype, n, k, 7);
      const std::vector<float> x = rng.NormalVector(m * k);
      const std::vector<float> want = Product(reference, w.Pack(Isa::kRef), x.data(), m);
      for (Isa isa : FastIsas()) {
        TestContext ctx(isa, 2);
        const PackedMatrix weight = w.Pack(isa);
        const Comparison comparison =
            Compare(Product(ctx, weight, x.data(), m), want, ToleranceFor(OpClass::kMatmul, format.dtype));
        EXPECT_TRUE(comparison.ok) << DTypeName(format.dtype) << " k=" << k << ": " << comparison.message;
      }
    }
  }
}

// The invariant of matmul.h: a row's bits do not depend on the other rows, nor on the threads.
TEST(Matmul, ARowHasTheSameBitsInAnyBatch) {
  constexpr int64_t kMaxRows = 150;
  TestRng rng(6);
  for (const QuantFormat& format : AllQuantFormats()) {
    for (int64_t depth : {96, 1696}) {
      const int64_t n = 89, k = WholeBlocks(format.dtype, depth);
      const TestWeight w(format.dtype, n, k, 8);
      const std::vector<float> x = rng.NormalVector(kMaxRows * k);
      for (Isa isa : TestableIsas()) {
        if (isa == Isa::kRef && depth > 96) continue;
        const PackedMatrix weight = w.Pack(isa);
        TestContext one(isa, 1), two(isa, 2), three(isa, 3);
        std::vector<float> alone;
        for (int64_t i = 0; i < kMaxRows; ++i) {
          const std::vector<float> row = Product(one, weight, x.data() + i * k, 1);
          alone.insert(alone.end(), row.begin(), row.end());
        }
        for (int64_t m : {2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 17, 18, 19, 31, 40, 64, 127, 128, 129, 150}) {
          for (TestContext* ctx : {&one, &two, &three}) {
            const std::vector<float> y = Product(*ctx, weight, x.data(), m);
            ASSERT_EQ(FirstBitDifference(y, {alone.data(), static_cast<size_t>(m * n)}), "")
                << IsaName(isa) << " " << DTypeName(format.dtype) << " m=" << m << " k=" << k;
          }
        }
      }
    }
  }
}

// One row reads its panels as the CPU at hand likes it: either way gives the same bits.
TEST(Matmul, ARowHasTheSameBitsAsOneStreamAndAsSeveral) {
  TestRng rng(7);
  const bool as_it_is = SetFollowsOneStreamForTesting(false);
  for (const QuantFormat& format : AllQuantFormats()) {
    for (int64_t n : {16, 89, 200}) {
      const int64_t k = WholeBlocks(format.dtype, 1696);
      const TestWeight w(format.dtype, n, k, 9);
      const std::vector<float> x = rng.NormalVector(k);
      for (Isa isa : FastIsas()) {
        const PackedMatrix weight = w.Pack(isa);
        TestContext ctx(isa, 1);
        SetFollowsOneStreamForTesting(false);
        const std::vector<float> several = Product(ctx, weight, x.data(), 1);
        SetFollowsOneStreamForTesting(true);
        EXPECT_EQ(FirstBitDifference(Product(ctx, weight, x.data(), 1), several), "")
            << IsaName(isa) << " " << DTypeName(format.dtype) << " n=" << n;
      }
    }
  }
  SetFollowsOneStreamForTesting(as_it_is);
}

// The order of operations on an output is written once for all instruction sets (matmul/tile.h).
TEST(Matmul, InstructionSetsAgreeToTheBit) {
  const std::vector<Isa> isas = FastIsas();
  if (isas.size() < 2) GTEST_SKIP() << "one fast instruction set here";
  TestRng rng(20);
  const auto compare = [&](DType dtype, int64_t n, int64_t k, int64_t m) {
    const TestWeight w(dtype, n, k, 21);
    const std::vector<float> x = rng.NormalVector(m * k);
    TestContext first(isas[0], 2);
    const std::vector<float> want = Product(first, w.Pack(isas[0]), x.data(), m);
    for (size_t i = 1; i < isas.size(); ++i) {
      TestContext ctx(isas[i], 2);
      EXPECT_EQ(FirstBitDifference(Product(ctx, w.Pack(isas[i]), x.data(), m), want), "")
          << IsaName(isas[i]) << " " << DTypeName(dtype) << " m=" << m << " k=" << k;
    }
  };
  for (const QuantFormat& format : AllQuantFormats()) {
    for (int64_t m : {1, 3, 8, 16, 21, 150}) compare(format.dtype, 89, WholeBlocks(format.dtype, 1696), m);
    compare(format.dtype, 17, WholeBlocks(format.dtype, 64), 1100);  // more rows than AMX's chains wait for at once
  }
}

TEST(Matmul, EachWeightByteIsStreamedOnce) {
  TestRng rng(9);
  const std::vector<float> x = rng.NormalVector(64 * 768);
  for (const QuantFormat& format : AllQuantFormats()) {
    for (Isa isa : TestableIsas()) {
      const PackedMatrix weight = TestWeight(format.dtype, 200, WholeBlocks(format.dtype, 576), 10).Pack(isa);
      for (int64_t m : {1, 8, 64}) {
        TestContext ctx(isa, 2);
        Product(ctx, weight, x.data(), m);
        EXPECT_EQ(ctx.counters().weight_bytes, weight.data_bytes);
      }
    }
  }
}

// What a context asks for is what runs: the reference's bits differ from a fast variant's, and a matrix that
// a fast variant cannot read falls back to the reference, counted.
TEST(Matmul, TheIsaAskedForRuns) {
  TestRng rng(11);
  const int64_t k = 576, n = 64;
  const TestWeight w(DType::kF32, n, k, 12);
  const std::vector<float> x = rng.NormalVector(k);
  const std::vector<float> exact = Definition(x, w.Decoded(), 1, n, k);
  for (Isa isa : FastIsas()) {
    const PackedMatrix panels = w.Pack(isa), rows = w.Pack(Isa::kRef);
    TestContext fast(isa), reference(Isa::kRef);
    EXPECT_NE(FirstBitDifference(Product(fast, panels, x.data(), 1), exact), "");
    EXPECT_EQ(fast.counters().generic_calls, 0);
    EXPECT_EQ(FirstBitDifference(Product(reference, panels, x.data(), 1), exact), "");
    EXPECT_EQ(reference.counters().generic_calls, 0);
    EXPECT_EQ(FirstBitDifference(Product(fast, rows, x.data(), 1), exact), "");
    EXPECT_EQ(fast.counters().generic_calls, 1);
  }
}

// A NaN in a row of x, or in a row of W, shows in all that depends on it and nowhere else.
TEST(Matmul, NaNGoesWhereItBelongs) {
  const int64_t m = 3, n = 20;
  for (const QuantFormat& format : AllQuantFormats()) {
    const int64_t k = WholeBlocks(format.dtype, 160);
    TestRng rng(13);
    TestWeight w(format.dtype, n, k, 14);
    std::vector<float> x = rng.NormalVector(m * k);
    x[k + 100] = std::numeric_limits<float>::quiet_NaN();
    for (Isa isa : TestableIsas()) {
      TestContext ctx(isa);
      const std::vector<float> y = Product(ctx, w.Pack(isa), x.data(), m);
      for (int64_t i = 0; i < m * n; ++i) {
        EXPECT_EQ(std::isnan(y[i]), i / n == 1) << DTypeName(format.dtype) << " " << IsaName(isa) << " " << i;
      }
    }
  }
  const int64_t k = 160;
  TestWeight w(DType::kFP8E4M3, n, k, 15);
  w.bytes[17 * k + 130] = std::byte{0xff};
  TestRng rng(16);
  const std::vector<float> x = rng.NormalVector(k);
  for (Isa isa : TestableIsas()) {
    TestContext ctx(isa);
    const std::vector<float> y = Product(ctx, w.Pack(isa), x.data(), 1);
    for (int64_t j = 0; j < n; ++j) EXPECT_EQ(std::isnan(y[j]), j == 17) << j;
  }
}

// The worst that the integer sums can meet: every product at its extreme, all of one sign.
TEST(Matmul, IntegerSumsDoNotOverflow) {
  const int64_t n = 16, k = 64;
  for (DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
    TestWeight w(dtype, n, k, 17);
    const int64_t head = dtype == DType::kQ4_1 ? 4 : 2, block = GetDTypeInfo(dtype).block_bytes;
    for (int fill : {0x00, 0xff, 0x80, 0x7f}) {
      for (size_t i = 0; i < w.bytes.size(); ++i) {
        if (static_cast<int64_t>(i) % block >= head) w.bytes[i] = static_cast<std::byte>(fill);
      }
      for (float value : {1.0f, -1.0f}) {
        const std::vector<float> x(k, value);
        const std::vector<float> want = Definition(x, w.Decoded(), 1, n, k);
        for (Isa isa : FastIsas()) {
          TestContext ctx(isa);
          const Comparison comparison =
              Compare(Product(ctx, w.Pack(isa), x.data(), 1), want, {1e-5, 1e-5, 0, -1});
          EXPECT_TRUE(comparison.ok) << DTypeName(dtype) << " fill " << fill << ": " << comparison.message;
        }
      }
    }
  }
}

// The same for codes with sub-blocks: every code and every scale at either end.
TEST(Matmul, IntegerSumsOfCodesDoNotOverflow) {
  const int64_t n = 16;
  for (const QuantFormat& quant : AllQuantFormats()) {
    const CodeFormat* format = FindCodeFormat(quant.dtype);
    if (format == nullptr) continue;
    const DTypeInfo& info = GetDTypeInfo(quant.dtype);
    const int64_t k = info.block_size * 2;
    TestWeight w(quant.dtype, n, k, 17);
    const bool bytes = quant.dtype == DType::kQ6_K, four = quant.dtype == DType::kQ2_K;
    const int scale_ends[] = {bytes ? 0x80 : 0, bytes ? 0x7f : four ? 15 : 63};
    const int code_ends[] = {0, (1 << format->bits) - 1};
    for (int scale : scale_ends) {
      for (int min : {0, four ? 15 : 63}) {
        for (int code : code_ends) {
          BlockCodes codes;
          codes.d = F32ToF16(0.5f);
          codes.dmin = F32ToF16(0.25f);
          std::fill_n(codes.scale, kMaxSubBlocks, static_cast<uint8_t>(scale));
          std::fill_n(codes.min, kMaxSubBlocks, static_cast<uint8_t>(min));
          std::fill_n(codes.q, kMaxBlockValues, static_cast<uint8_t>(code));
          for (int64_t b = 0; b < 2 * n; ++b) format->pack(codes, w.bytes.data() + b * info.block_bytes);
          for (float value : {1.0f, -1.0f}) {
            const std::vector<float> x(k, value);
            const std::vector<float> want = Definition(x, w.Decoded(), 1, n, k);
            for (Isa isa : FastIsas()) {
              TestContext ctx(isa);
              const Comparison comparison =
                  Compare(Product(ctx, w.Pack(isa), x.data(), 1), want, {1e-5 * 63 * k, 1e-5, 0, -1});
              EXPECT_TRUE(comparison.ok)
                  << info.name << " scale " << scale << " code " << code << ": " << comparison.message;
            }
          }
        }
      }
    }
  }
}

TEST(Matmul, WorkspaceIsWhatItSays) {
  TestRng rng(18);
  for (DType dtype : {DType::kF16, DType::kQ4_1, DType::kQ6_K}) {
    for (Isa isa : TestableIsas()) {
      const PackedMatrix weight = TestWeight(dtype, 64, 768, 19).Pack(isa);
      TestContext ctx(isa, 3, MatmulWorkspaceBytes(100, 768, 3));
      Product(ctx, weight, rng.NormalVector(100 * 768).data(), 100);
      EXPECT_LE(ctx.workspace().peak(), MatmulWorkspaceBytes(100, 768, 3));
    }
  }
}

}  // namespace
}  // namespace cachalot
