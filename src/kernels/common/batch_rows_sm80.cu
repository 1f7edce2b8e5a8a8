// batch_rows: from spans to rows, once a step; rows of no span keep -1. Few rows: one block; many: one a span behind one that clears.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "kernels/common/cuda_batch.h"

namespace cachalot {
namespace {

constexpr int kThreads = 256;
constexpr int kFewRows = 1024;

__device__ __forceinline__ void Clear(const CudaBatch& batch, int row) {
  batch.row_slots[row] = -1;
  batch.row_positions[row] = -1;
  batch.row_spans[row] = -1;
}
__device__ __forceinline__ void Fill(const CudaBatch& batch, int s, int first, int step) {
  const SeqSpan span = batch.spans[s];
  for (int i = first; i < span.q_len; i += step) {
    const int row = span.q_begin + i;
    if (row >= batch.num_rows) return;
    batch.row_slots[row] = span.slot;
    batch.row_positions[row] = span.kv_len - span.q_len + i;
    batch.row_spans[row] = s;
  }
}

__global__ void FewRowsKernel(CudaBatch batch) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  for (int row = static_cast<int>(threadIdx.x); row < batch.num_rows; row += kThreads) Clear(batch, row);
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int s = warp; s < batch.num_spans; s += kThreads / 32) Fill(batch, s, lane, 32);
}
__global__ void ClearRowsKernel(CudaBatch batch) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row < batch.num_rows) Clear(batch, row);
}
__global__ void FillRowsKernel(CudaBatch batch) {
  LetNextKernelStart();
  WaitForEarlierKernels();
  Fill(batch, static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
}

}  // namespace

CudaStatus CudaBatchRows(const CudaExec& exec, const CudaBatch& batch) {
  if (batch.num_rows == 0) return nullptr;
  if (batch.num_rows <= kFewRows) {
    LaunchOverlapped(&FewRowsKernel, 1, kThreads, 0, exec.stream, batch);
  } else {
    LaunchOverlapped(&ClearRowsKernel, (batch.num_rows + kThreads - 1) / kThreads, kThreads, 0, exec.stream, batch);
    if (batch.num_spans > 0) LaunchOverlapped(&FillRowsKernel, batch.num_spans, batch.max_q_len > 64 ? kThreads : 32, 0, exec.stream, batch);
  }
  return CudaLaunched("batch_rows of %d rows, %d spans", batch.num_rows, batch.num_spans);
}

}  // namespace cachalot
