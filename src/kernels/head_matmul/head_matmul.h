// A matrix of its own for every head: y[i, h] = x[i, h] · W_hᵀ (MLA carries queries into the latent space and values out of
// it this way; DeepSeek-V2, arXiv 2405.04434, section 2.1.2). And the copy of what such a product leaves out.
// Bits of a row do not depend on the batch, as for Matmul.
#pragma once

#include <cstdint>
#include <vector>

#include "device/exec_context.h"
#include "kernels/matmul/packed_matrix.h"

namespace cachalot {

// The heads' matrices [n, k]: one each on the CPU; on the GPU a single one holds them all, [num_heads * n, k].
struct HeadMatrices {
  std::vector<PackedMatrix> matrices;
  int32_t num_heads = 0;
  int64_t n = 0;  // of one head
  int64_t k = 0;

  int64_t data_bytes() const {
    int64_t bytes = 0;
    for (const PackedMatrix& matrix : matrices) bytes += matrix.data_bytes;
    return bytes;
  }
};

struct HeadMatmulParams {
  const float* x = nullptr;  // row i, head h at x + i * x_stride + h * x_head_stride, [k]
  int64_t x_stride = 0;
  int64_t x_head_stride = 0;
  int64_t m = 0;
  const HeadMatrices* weights = nullptr;
  float* y = nullptr;  // row i, head h at y + i * y_stride + h * y_head_stride, [n]
  int64_t y_stride = 0;
  int64_t y_head_stride = 0;
};
void HeadMatmul(const ExecContext& ctx, const HeadMatmulParams& params);
int64_t HeadMatmulWorkspaceBytes(int64_t max_rows, int32_t num_heads, int64_t k, int num_threads);

// y[i, h, 0..dim) = x[i, h, 0..dim)
struct CopyHeadsParams {
  const float* x = nullptr;
  int64_t x_stride = 0;
  int64_t x_head_stride = 0;
  int64_t m = 0;
  int32_t num_heads = 0;
  int32_t dim = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  int64_t y_head_stride = 0;
};
void CopyHeads(const ExecContext& ctx, const CopyHeadsParams& params);

}  // namespace cachalot
