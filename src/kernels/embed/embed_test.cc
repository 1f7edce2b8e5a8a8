#include "kernels/embed/embed.h"

#include <gtest/gtest.h>

#include "kernels/common/testing.h"
#include "quant/format.h"

namespace cachalot {
namespace {

// Every type in every layout: the rows, bit for bit, in the order asked for and nothing beside them.
TEST(Embed, GivesTheRowsOfTheTable) {
  constexpr int64_t kVocab = 37, kDim = 256, kStride = kDim + 3;
  const std::vector<int32_t> ids = {0, 36, 5, 5, 16, 15};
  TestRng rng(1);
  const std::vector<float> values = rng.NormalVector(kVocab * kDim);
  const std::vector<float> scales = {0.5f, 0.25f};
  for (const QuantFormat& format : AllQuantFormats()) {
    std::vector<std::byte> bytes(DTypeBytes(format.dtype, kVocab * kDim));
    format.encode(values.data(), bytes.data(), kVocab * kDim);
    std::vector<float> decoded(kVocab * kDim);
    format.decode(bytes.data(), decoded.data(), kVocab * kDim);
    const bool scaled = format.dtype == DType::kFP8E4M3;
    if (scaled) {
      for (size_t i = 0; i < decoded.size(); ++i) decoded[i] *= scales[i % kDim / 128];
    }
    const MatrixPart part{format.dtype, kVocab, bytes.data(), scaled ? scales.data() : nullptr};
    for (Isa isa : TestableIsas()) {
      SCOPED_TRACE(fmt::format("{} {}", DTypeName(format.dtype), IsaName(isa)));
      const PackedMatrix table = PackMatrix({&part, 1}, kDim, {.isa = isa}).value();
      TestContext ctx(isa, 2);
      GuardedBuffer<float> y(ids.size() * kStride);
      Embed(ctx, {ids.data(), static_cast<int64_t>(ids.size()), &table, y.data(), kStride});
      EXPECT_TRUE(y.Intact());
      for (size_t i = 0; i < ids.size(); ++i) {
        EXPECT_EQ(FirstBitDifference({y.data() + i * kStride, kDim}, {decoded.data() + ids[i] * kDim, kDim}),
                  "");
        for (int64_t j = kDim; j < kStride; ++j) EXPECT_TRUE(y.Poisoned(i * kStride + j));
      }
    }
  }
}

}  // namespace
}  // namespace cachalot
