// Linear: y = x · Wᵀ + b. Projections of one input (q, k, v; gate, up) are stacked, so that the input is read once;
// where a file gives them different types, they are several matrices side by side.
#pragma once

#include <span>
#include <vector>

#include "device/exec_context.h"
#include "kernels/attention/attention.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/matmul_cuda.h"
#include "model/layers/normed_input.h"
#include "model/weight_reader.h"

namespace cachalot {

// Where a matrix lies in device memory; nothing on the CPU.
inline UpcomingBytes UpcomingRows(const PackedMatrix& matrix) {
  if (matrix.layout != PackLayout::kCuda) return {};
  return {matrix.data, matrix.n * CudaRowsOf(matrix.dtype, matrix.k).row_bytes};
}

class Linear {
 public:
  // biases: empty, or one reference per part.
  static Result<Linear> Build(WeightReader* reader, std::span<const RowsOf> parts, std::span<const WeightRef> biases, int64_t k);

  // x [m, k] → y [m, n]; accumulate adds to y.
  void Run(const ExecContext& ctx, const float* x, int64_t x_stride, int64_t m, float* y, int64_t y_stride,
           bool accumulate = false) const;

  // The same of a layer's input.
  void Run(const ExecContext& ctx, NormedInput* input, float* y, int64_t y_stride) const;
  // y [m, n / 2] = SwiGLU of the two halves of the product, where that is one launch; else false, and nothing has been done.
  bool RunGlu(const ExecContext& ctx, NormedInput* input, float* y, int64_t y_stride) const;

  // On the CPU: the product [m, n] and SwiGLU of its halves over the first.
  void RunThenSwiGlu(const ExecContext& ctx, NormedInput* input, float* y, int64_t y_stride) const;

  // The matrix, where it is one and has no bias; else null.
  const PackedMatrix* Only() const { return matrices_.size() == 1 && bias_.empty() ? &matrices_.front() : nullptr; }

  // Its first matrix, for who may want it in L2.
  UpcomingBytes Upcoming() const { return UpcomingRows(matrices_.front()); }

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  int64_t weight_bytes() const {
    int64_t bytes = 0;
    for (const PackedMatrix& matrix : matrices_) bytes += matrix.data_bytes;
    return bytes;
  }

 private:
  std::vector<PackedMatrix> matrices_;  // side by side in y
  FloatArray bias_;                     // [n] or empty
  int64_t n_ = 0;
  int64_t k_ = 0;
};

}  // namespace cachalot
