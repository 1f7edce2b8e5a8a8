// F16 and BF16 weights, many rows, as 16-bit integers (matmul/int16_tile.h), AVX2.
//
// Bounds: vpmaddwd does 16 multiply-adds where an FMA does 8, on as many ports, and its vpaddd has ports to
// spare on some cores: a tile of 6 rows x 16 columns could take 6 cycles for 2 of k, where FMAs take 12. Zen 3 takes
// 8.4 (7.3 without the loads; no order of the instructions helps, so it is the choice of ports): 149 GFLOP/s of a core
// whose FMAs do 103 and reach 97. Converting a panel costs as much as 15 to 20 rows of it gain.
#include "kernels/matmul/int16_tile.h"
#include "kernels/matmul/lanes_avx2.h"

namespace cachalot {
namespace {

constexpr int kRows = 6;
constexpr PanelKernel kKernels[] = {
    {DType::kF16, Isa::kAvx2, RunInt16<Avx2Lanes, kRows, WeightsF16>, QuantizeInt16, kInt16XBytes},
    {DType::kBF16, Isa::kAvx2, RunInt16<Avx2Lanes, kRows, WeightsBF16>, QuantizeInt16, kInt16XBytes},
};

}  // namespace

std::span<const PanelKernel> Int16KernelsAvx2() {
  return kKernels;
}

}  // namespace cachalot
