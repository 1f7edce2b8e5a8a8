// Weights in the device's layout and the scratch of the matmuls, for their GPU tests.
#pragma once

#include <thread>

#include "gpu_testing.h"
#include "kernels/matmul/matmul_cuda.h"
#include "kernels/matmul/matmul_testing.h"
#include "tensor/float_convert.h"

namespace cachalot {

inline constexpr DType kCudaMatmulTypes[] = {
    DType::kF32,  DType::kF16,  DType::kBF16, DType::kFP8E4M3, DType::kQ8_0, DType::kQ4_0,   DType::kQ4_1,  DType::kQ5_0,
    DType::kQ5_1, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K,    DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS};

// A context of the reference with all the machine's threads.
inline TestContext& MatmulReference() {
  static TestContext context(Isa::kRef, static_cast<int>(std::min(32u, std::max(1u, std::thread::hardware_concurrency()))));
  return context;
}
inline ThreadPool* AllThreads() { return (*MatmulReference()).pool; }

// A weight made by all threads; k is rounded up to whole blocks of the type.
inline TestWeight BigWeight(DType dtype, int64_t n, int64_t k, uint64_t seed) {
  return TestWeight(dtype, n, WholeBlocks(dtype, k), seed, AllThreads());
}

// What 16-bit tensor cores may differ by when x is a 16-bit value already: the order and the truncation of F32 sums.
inline constexpr Tolerance kExactXTolerance = {1e-6, 2e-5, 2e-4, 1 - 1e-8};

// Many rows of x: codes are decoded to F16, each weight by up to 2^-11 of itself; of a sum whose terms cancel that is more.
inline const Tolerance& FastTolerance(DType dtype, int64_t m, int64_t blas_rows = 128) {
  static constexpr Tolerance kF16Weights = {1e-6, 5e-4, 2e-3, 1 - 2e-7};
  return m > blas_rows && dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16 ? kF16Weights : kExactXTolerance;
}

// Rows [first, first + rows) of a file's matrix, packed.
inline std::vector<std::byte> PackedRows(const TestWeight& weight, int64_t first, int64_t rows) {
  const int64_t file_bytes = DTypeBytes(weight.dtype, weight.k), row_bytes = CudaRowsOf(weight.dtype, weight.k).row_bytes;
  std::vector<std::byte> out(static_cast<size_t>(rows * row_bytes));
  AllThreads()->ParallelFor(rows, [&](int64_t i, int) {
    PackCudaRow(weight.dtype, weight.bytes.data() + (first + i) * file_bytes, weight.k, out.data() + i * row_bytes);
  });
  return out;
}

// A TestWeight in device memory. row_scales: FP8 with a row of block scales for each row of W.
class GpuWeight {
 public:
  explicit GpuWeight(const TestWeight& weight, bool row_scales = false)
      : bytes_(PackedRows(weight, 0, weight.n)), scales_(ScalesOf(weight, row_scales)) {
    view_ = {.dtype = weight.dtype, .n = weight.n, .k = weight.k, .data = bytes_.data()};
    if (weight.dtype == DType::kFP8E4M3) {
      view_.block_scales = scales_.data();
      view_.block_scale_rows = row_scales ? 1 : 128;
    }
  }
  const CudaMatrix& view() const { return view_; }
  bool Intact() const { return bytes_.Intact() && scales_.Intact(); }

 private:
  static std::vector<float> ScalesOf(const TestWeight& weight, bool row_scales) {
    if (weight.scales.empty()) return {1.0f};
    if (!row_scales) return weight.scales;
    const int64_t columns = (weight.k + 127) / 128;
    std::vector<float> out;
    for (int64_t row = 0; row < weight.n; ++row) {
      const auto first = weight.scales.begin() + row / 128 * columns;
      out.insert(out.end(), first, first + columns);
    }
    return out;
  }

  GpuArray<std::byte> bytes_;
  GpuArray<float> scales_;
  CudaMatrix view_;
};

// How an op runs: math and what CudaExec promises.
struct MatmulMode {
  const char* name;
  CudaMath math;
  bool deterministic;
  bool counters;
  bool plans = true;
};
inline constexpr MatmulMode kMatmulModes[] = {
    {"fast", CudaMath::kFast, false, true},
    {"fast, deterministic", CudaMath::kFast, true, true},
    {"fast without counters and cuBLASLt", CudaMath::kFast, false, false, false},
    {"F32", CudaMath::kF32, false, true},
    {"F32, deterministic", CudaMath::kF32, true, true},
};

// Scratch of exactly the planned size.
class MatmulScratch {
 public:
  explicit MatmulScratch(int64_t bytes) : workspace_(bytes), counters_(kCudaCounters) {
    counters_.Write(std::vector<uint32_t>(kCudaCounters));
  }
  CudaExec Exec(const MatmulMode& mode) const {
    CudaExec exec = Gpu::Get().Exec(mode.math, mode.deterministic);
    exec.workspace = workspace_.data();
    exec.workspace_bytes = workspace_.size_bytes();
    exec.counters = mode.counters ? counters_.data() : nullptr;
    if (!mode.plans) exec.matmul_plans = nullptr;
    return exec;
  }
  bool Intact() const {
    const std::vector<uint32_t> counters = counters_.Read();
    return workspace_.Intact() && counters_.Intact() &&
           std::all_of(counters.begin(), counters.end(), [](uint32_t c) { return c == 0; });
  }

 private:
  GpuBytes workspace_;
  GpuArray<uint32_t> counters_;
};

// Values that 16-bit formats hold, so that the reference needs no rounding of its own; about normal.
inline std::vector<float> BF16Vector(TestRng* rng, int64_t count) {
  std::vector<float> values(count);
  for (float& value : values) {
    const uint64_t bits = rng->Next();
    const auto sum = static_cast<float>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
    value = BF16ToF32(F32ToBF16((sum / 65536 - 2) * 1.7f));
  }
  return values;
}

}  // namespace cachalot
