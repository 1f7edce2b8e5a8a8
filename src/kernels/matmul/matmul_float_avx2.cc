// F32, F16, BF16 and FP8 weights against F32 activations (matmul/float_tile.h), AVX2.
//
// Bounds, for a core at 8 FMA lanes x 2 a cycle that has about 8 GB/s of the memory: a weight of 2 bytes
// costs 0.25 ns to read and 1/16 cycle a row to use, so up to about 12 rows the memory is the limit and above
// it the FMAs are. A tile of 6 rows x 16 columns is 12 chains, the most that 16 registers hold and enough to
// hide the FMA's latency; few rows take several panels at once for that. Weights are converted inside the
// tile: for 6 rows that is 2 to 6 instructions beside 12 FMAs, and it was faster at every number of rows than
// converting a panel once and reading it back (F16, 576 x 3072, 24 rows: 90 against 75 GFLOP/s of a core's
// 103; 512 rows: 93 against 89). FP8 takes 16 instructions, so from nine rows on a panel becomes F32 once.
// The chain over k is the same in every form.
#include "kernels/matmul/float_tile.h"
#include "kernels/matmul/lanes_avx2.h"

namespace cachalot {
namespace {

struct Tiles {
  using V = Avx2Lanes;
  static constexpr int kRows = 6;
  static constexpr int kFp8Rows = 4;
  static constexpr int kConvertedRows = 9;
  static constexpr int PanelsAtOnce(int rows, bool fp8) {
    return rows == 1 ? (fp8 ? 2 : 4) : rows == 2 ? (fp8 ? 1 : 2) : 1;
  }
};

constexpr PanelKernel kKernels[] = {
    {DType::kF32, Isa::kAvx2, Direct<Tiles, WeightsF32>, nullptr},
    {DType::kF16, Isa::kAvx2, Direct<Tiles, WeightsF16>, nullptr},
    {DType::kBF16, Isa::kAvx2, Direct<Tiles, WeightsBF16>, nullptr},
    {DType::kFP8E4M3, Isa::kAvx2, RunFp8<Tiles>, nullptr},
};

}  // namespace

std::span<const PanelKernel> FloatKernelsAvx2() {
  return kKernels;
}

}  // namespace cachalot
