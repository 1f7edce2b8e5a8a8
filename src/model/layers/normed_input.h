// A layer's input: rows of the residual stream and the norm in front of them. Matmuls of few rows on the GPU norm their rows
// themselves; whoever cannot asks for Rows, and the first who does has them made.
//
// Invariant: while MayBeRaw, nobody changes the residual stream before everybody has read it.
#pragma once

#include <cstdint>

#include "kernels/common/cuda_step.h"
#include "kernels/matmul/cuda_fusion.h"
#include "kernels/rms_norm/rms_norm.h"

namespace cachalot {

class NormedInput {
 public:
  // x, normed [num_rows, dim]; weight [dim].
  NormedInput(const float* x, int64_t num_rows, int64_t dim, const float* weight, float eps, float* normed)
      : x_(x), num_rows_(num_rows), dim_(dim), weight_(weight), eps_(eps), normed_(normed) {}

  // At most so many rows are taken raw; with as many a step's memory is planned apart (cuda_memory.cc).
  static constexpr int64_t kMostRawRows = 8;

  int64_t num_rows() const { return num_rows_; }
  int64_t dim() const { return dim_; }
  bool IsFew(const ExecContext& exec) const { return OnCuda(exec) && num_rows_ <= kMostRawRows; }
  bool MayBeRaw(const ExecContext& exec) const { return IsFew(exec) && !made_; }
  const float* raw() const { return x_; }
  CudaFusion norm() const { return {.norm_weight = weight_, .norm_eps = eps_}; }

  const float* Rows(const ExecContext& exec) {
    if (!made_) {
      RmsNorm(exec, {.x = x_, .token_stride_x = dim_, .num_tokens = num_rows_, .dim = dim_, .weight = weight_, .eps = eps_,
                     .y = normed_, .token_stride_y = dim_});
    }
    made_ = true;
    return normed_;
  }

  // Calls run(x, fusion) with what it is to read: as it stands where fuses(raw x, fusion with the norm) says so.
  template <typename Fuses, typename Run>
  void Give(const ExecContext& exec, CudaFusion fusion, const Fuses& fuses, const Run& run) {
    CudaFusion with_norm = norm();
    with_norm.glu = fusion.glu;
    if (MayBeRaw(exec) && fuses(x_, with_norm)) return run(x_, with_norm);
    run(Rows(exec), fusion);
  }

 private:
  const float* x_;
  int64_t num_rows_, dim_;
  const float* weight_;
  float eps_;
  float* normed_;
  bool made_ = false;
};

}  // namespace cachalot
