// mla_split: which spans of a step are expanded, and where their tokens lie. One block scans the spans; then a thread a row
// finds its span.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/warp.cuh"
#include "kernels/common/cuda_batch.h"
#include "kernels/mla_expand/mla_expand_cuda.h"

namespace cachalot {
namespace {

constexpr int kThreads = 1024;

__global__ void SplitKernel(const SeqSpan* spans, int num_spans, CudaMlaSplitParams p) {
  __shared__ int64_t row_scratch[32];
  __shared__ int block_scratch[32];
  int64_t rows = 0;
  int blocks = 0;
  for (int base = 0; base < num_spans; base += kThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
    const SeqSpan span = i < num_spans ? spans[i] : SeqSpan{};
    const int span_blocks = (span.kv_len + p.block_tokens - 1) / p.block_tokens;
    const bool wanted = span.q_len > 0 && span.q_len >= p.min_q_len && span_blocks <= p.table_stride;
    int64_t total_rows = 0;
    int total_blocks = 0;
    const int64_t row = rows + BlockExclusiveScan<kThreads>(wanted ? int64_t{span.kv_len} : 0, &total_rows, row_scratch);
    const int block = blocks + BlockExclusiveScan<kThreads>(wanted ? span_blocks : 0, &total_blocks, block_scratch);
    rows += total_rows;
    blocks += total_blocks;
    if (i >= num_spans) continue;
    const bool expanded = wanted && row + span.kv_len <= p.max_rows;
    p.row_begins[i] = row;
    p.block_begins[i] = block;
    p.absorbed[i] = {span.slot, span.q_begin, expanded ? 0 : span.q_len, span.kv_len};
    p.expanded[i] = {i, span.q_begin, expanded ? span.q_len : 0, span.kv_len};
  }
}

__global__ void RowsKernel(const SeqSpan* spans, int num_spans, CudaMlaSplitParams p) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= p.max_rows) return;
  // The last span that begins here or before: those before it that begin with it are empty.
  int low = 0, high = num_spans;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (p.row_begins[middle] <= row ? low : high) = middle;
  }
  const int64_t position = row - p.row_begins[low];
  const SeqSpan span = p.expanded[low];
  if (span.q_len == 0 || position >= span.kv_len) {
    p.rows[row] = {};
    return;
  }
  const auto at = static_cast<int32_t>(position);
  const int32_t block = p.block_begins[low] + at / p.block_tokens;
  p.rows[row] = {spans[low].slot, at, block};
  if (at % p.block_tokens == 0) p.block_tables[low * p.table_stride + at / p.block_tokens] = block;
}

}  // namespace

CudaStatus CudaMlaSplit(const CudaExec& exec, const CudaBatch& batch, const CudaMlaSplitParams& params) {
  if (params.block_tokens <= 0 || params.max_rows < 0 || params.max_rows > INT32_MAX) {
    return CudaFail(CudaFault::kInvalid, "mla_split: %lld rows in blocks of %d tokens",
                    static_cast<long long>(params.max_rows), params.block_tokens);
  }
  if (batch.num_spans == 0) return nullptr;
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  SplitKernel<<<1, kThreads, 0, stream>>>(batch.spans, batch.num_spans, params);
  if (params.max_rows > 0) {
    RowsKernel<<<static_cast<unsigned>((params.max_rows + 255) / 256), 256, 0, stream>>>(batch.spans, batch.num_spans,
                                                                                         params);
  }
  return CudaLaunched("mla_split of %d spans, at most %lld rows", batch.num_spans,
                      static_cast<long long>(params.max_rows));
}

}  // namespace cachalot
