// F32, F16, BF16 and FP8 weights against F32 activations (matmul/float_tile.h), AVX-512.
//
// Bounds: 16 FMA lanes x 2 a cycle, on the two ports that conversions take as well: a step of F16 or BF16
// costs two instructions, so a tile of 24 rows reaches 24 / 26 of the peak. 24 chains and a weight are what
// 32 registers hold; x comes from memory as the FMA's operand. Fewer rows take several panels at once. BF16's
// own product (vdpbf16ps) would round x to 8 bits, beyond the tolerance; x in two pieces would make it good
// at twice the instructions, no fewer than FMAs. The chain over k is AVX2's, to the bit.
#include "kernels/matmul/float_tile.h"
#include "kernels/matmul/lanes_avx512.h"

namespace cachalot {
namespace {

struct Tiles {
  using V = Avx512Lanes;
  static constexpr int kRows = 24;
  static constexpr int kFp8Rows = 8;
  static constexpr int kConvertedRows = 9;
  static constexpr int PanelsAtOnce(int rows, bool) { return rows <= 4 ? 4 : rows <= 8 ? 2 : 1; }
};

void CopyX(const float* x, int64_t k, std::byte* out) {
  __builtin_memcpy(out, x, static_cast<size_t>(k) * sizeof(float));
}
constexpr int64_t kCopyBytes = 32 * sizeof(float);

constexpr PanelKernel kKernels[] = {
    {DType::kF32, Isa::kAvx512, Direct<Tiles, WeightsF32>, CopyX, kCopyBytes},
    {DType::kF16, Isa::kAvx512, Direct<Tiles, WeightsF16>, CopyX, kCopyBytes},
    {DType::kBF16, Isa::kAvx512, Direct<Tiles, WeightsBF16>, CopyX, kCopyBytes},
    {DType::kFP8E4M3, Isa::kAvx512, RunFp8<Tiles>, CopyX, kCopyBytes},
};

}  // namespace

std::span<const PanelKernel> FloatKernelsAvx512() {
  return kKernels;
}

}  // namespace cachalot
