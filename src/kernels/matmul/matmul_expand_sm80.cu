// Rows of codes to F16, for cuBLASLt: where there are many rows of x, decoding W once costs less than decoding it for each
// tile. Scaled values are rounded to F16, as x is. Bound: the bytes written.
#include "device/cuda/cuda_error.h"
#include "device/cuda/dependent_launch.cuh"
#include "kernels/matmul/matmul_problem.cuh"
#include "kernels/matmul/stream_format.cuh"

namespace cachalot {
namespace {

constexpr int kThreads = 256;

// A thread 8 values of a row.
template <DType kType>
__global__ void ExpandKernel(CudaMatrix w, CudaRowLayout layout, int64_t first, int64_t runs, int runs_per_row, uint4* out) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= runs) return;
  const int64_t row = first + at / runs_per_row, i = at % runs_per_row * 8;
  const WeightRow<kType> reader(w.data + row * layout.row_bytes, layout, w.block_scales, w.block_scale_rows, row, w.k);
  float v[2][4];
  reader.Load4(i, v[0]);
  reader.Load4(i + 4, v[1]);
  out[at] = {PackX(v[0][0], v[0][1], __half{}), PackX(v[0][2], v[0][3], __half{}), PackX(v[1][0], v[1][1], __half{}),
             PackX(v[1][2], v[1][3], __half{})};
}

}  // namespace

CudaStatus ExpandRows(const CudaExec& exec, const CudaMatrix& w, int64_t first, int64_t rows, void* out) {
  const int64_t runs_per_row = StreamRowValues(w.k) / 8, runs = rows * runs_per_row;
  const auto launch = [&](auto* kernel) {
    LaunchOverlapped(kernel, (runs + kThreads - 1) / kThreads, kThreads, 0, exec.stream, w, CudaRowsOf(w.dtype, w.k), first, runs,
                     static_cast<int>(runs_per_row), static_cast<uint4*>(out));
    return CudaLaunched("matmul: %lld rows of %lld codes to F16", static_cast<long long>(rows), static_cast<long long>(w.k));
  };
  switch (w.dtype) {
    case DType::kFP8E4M3:
      return launch(&ExpandKernel<DType::kFP8E4M3>);
    case DType::kQ8_0:
      return launch(&ExpandKernel<DType::kQ8_0>);
    case DType::kQ4_0:
      return launch(&ExpandKernel<DType::kQ4_0>);
    case DType::kQ4_1:
      return launch(&ExpandKernel<DType::kQ4_1>);
    case DType::kQ5_0:
      return launch(&ExpandKernel<DType::kQ5_0>);
    case DType::kQ5_1:
      return launch(&ExpandKernel<DType::kQ5_1>);
    case DType::kQ2_K:
      return launch(&ExpandKernel<DType::kQ2_K>);
    case DType::kQ3_K:
      return launch(&ExpandKernel<DType::kQ3_K>);
    case DType::kQ4_K:
      return launch(&ExpandKernel<DType::kQ4_K>);
    case DType::kQ5_K:
      return launch(&ExpandKernel<DType::kQ5_K>);
    case DType::kQ6_K:
      return launch(&ExpandKernel<DType::kQ6_K>);
    case DType::kIQ4_NL:
      return launch(&ExpandKernel<DType::kIQ4_NL>);
    case DType::kIQ4_XS:
      return launch(&ExpandKernel<DType::kIQ4_XS>);
    default:
      return CudaFail(CudaFault::kUnsupported, "matmul: rows of type number %d to F16", static_cast<int>(w.dtype));
  }
}

}  // namespace cachalot
