// F16 and BF16 weights, many rows, as 16-bit integers (matmul/int16_tile.h), AVX-512 with VNNI.
//
// Bounds: vpdpwssd does 32 multiply-adds and adds them up, two a cycle: twice the FMAs. A tile of 12 rows
// loads 12 pairs of x, as operands, and one register of weights for 12 of them, two loads a cycle: 6.5 cycles for 2 of
// k. 12 chains hide the latency, and more rows would not find registers for their pointers.
#include "kernels/matmul/int16_tile.h"
#include "kernels/matmul/lanes_avx512.h"

namespace cachalot {
namespace {

constexpr int kRows = 12;
constexpr PanelKernel kKernels[] = {
    {DType::kF16, Isa::kAvx512, RunInt16<Avx512Lanes, kRows, WeightsF16>, QuantizeInt16, kInt16XBytes},
    {DType::kBF16, Isa::kAvx512, RunInt16<Avx512Lanes, kRows, WeightsBF16>, QuantizeInt16, kInt16XBytes},
};

}  // namespace

std::span<const PanelKernel> Int16KernelsAvx512() {
  return kKernels;
}

}  // namespace cachalot
