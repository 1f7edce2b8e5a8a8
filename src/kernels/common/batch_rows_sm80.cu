// batch_rows: from spans to rows, once a step. One block a span; rows of no span keep -1.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "kernels/common/cuda_batch.h"

namespace cachalot {
namespace {

__global__ void ClearRowsKernel(CudaBatch batch) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= batch.num_rows) return;
  batch.row_slots[row] = -1;
  batch.row_positions[row] = -1;
  batch.row_spans[row] = -1;
}

__global__ void FillRowsKernel(CudaBatch batch) {
  const SeqSpan span = batch.spans[blockIdx.x];
  for (int i = threadIdx.x; i < span.q_len; i += blockDim.x) {
    const int row = span.q_begin + i;
    if (row >= batch.num_rows) return;
    batch.row_slots[row] = span.slot;
    batch.row_positions[row] = span.kv_len - span.q_len + i;
    batch.row_spans[row] = static_cast<int32_t>(blockIdx.x);
  }
}

}  // namespace

CudaStatus CudaBatchRows(const CudaExec& exec, const CudaBatch& batch) {
  if (batch.num_rows == 0) return nullptr;
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  ClearRowsKernel<<<(batch.num_rows + 255) / 256, 256, 0, stream>>>(batch);
  if (batch.num_spans > 0) {
    FillRowsKernel<<<batch.num_spans, batch.max_q_len > 64 ? 256 : 32, 0, stream>>>(batch);
  }
  return CudaLaunched("batch_rows of %d rows, %d spans", batch.num_rows, batch.num_spans);
}

}  // namespace cachalot
