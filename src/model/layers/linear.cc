#include "model/layers/linear.h"

#include <algorithm>

#include "kernels/swiglu/swiglu.h"

namespace cachalot {
namespace {

MatmulParams With(MatmulParams params, const float* x, const CudaFusion& fusion) {
  params.x = x;
  params.fusion = fusion;
  return params;
}

}  // namespace

Result<Linear> Linear::Build(WeightReader* reader, std::span<const RowsOf> parts, std::span<const WeightRef> biases,
                             int64_t k) {
  Linear linear;
  linear.k_ = k;
  const bool one_type = std::all_of(parts.begin(), parts.end(), [&](const RowsOf& part) {
    return reader->TypeOf(part.ref) == reader->TypeOf(parts.front().ref);
  });
  const size_t step = one_type ? parts.size() : 1;
  for (size_t i = 0; i < parts.size(); i += step) {
    ASSIGN_OR_RETURN(PackedMatrix matrix, reader->Matrix(parts.subspan(i, step), k));
    linear.n_ += matrix.n;
    linear.matrices_.push_back(std::move(matrix));
  }
  if (biases.empty()) return linear;
  std::vector<float> all;
  for (size_t i = 0; i < biases.size(); ++i) {
    ASSIGN_OR_RETURN(const std::vector<float> bias, reader->Values(biases[i], 1, parts[i].rows));
    all.insert(all.end(), bias.begin(), bias.end());
  }
  ASSIGN_OR_RETURN(linear.bias_, reader->Floats(std::move(all), linear.n_));
  return linear;
}

void Linear::Run(const ExecContext& ctx, const float* x, int64_t x_stride, int64_t m, float* y, int64_t y_stride,
                 bool accumulate) const {
  int64_t begin = 0;
  for (const PackedMatrix& matrix : matrices_) {
    Matmul(ctx, {.x = x,
                 .x_stride = x_stride,
                 .m = m,
                 .weight = &matrix,
                 .bias = bias_.empty() ? nullptr : bias_.data() + begin,
                 .y = y + begin,
                 .y_stride = y_stride,
                 .accumulate = accumulate});
    begin += matrix.n;
  }
}

void Linear::Run(const ExecContext& ctx, NormedInput* input, float* y, int64_t y_stride) const {
  int64_t begin = 0;
  for (const PackedMatrix& matrix : matrices_) {
    MatmulParams params = {.x_stride = input->dim(),
                           .m = input->num_rows(),
                           .weight = &matrix,
                           .bias = bias_.empty() ? nullptr : bias_.data() + begin,
                           .y = y + begin,
                           .y_stride = y_stride};
    input->Give(ctx, {}, [&](const float* x, const CudaFusion& fusion) { return MatmulFuses(ctx, With(params, x, fusion)); },
                [&](const float* x, const CudaFusion& fusion) { Matmul(ctx, With(params, x, fusion)); });
    begin += matrix.n;
  }
}

bool Linear::RunGlu(const ExecContext& ctx, NormedInput* input, float* y, int64_t y_stride) const {
  if (matrices_.size() != 1 || !bias_.empty() || !OnCuda(ctx)) return false;
  const MatmulParams params = {.x_stride = input->dim(), .m = input->num_rows(), .weight = &matrices_[0], .y = y, .y_stride = y_stride};
  const auto fuses = [&](const float* x, const CudaFusion& fusion) { return MatmulFuses(ctx, With(params, x, fusion)); };
  if (!fuses(input->raw(), {.glu = true})) return false;  // where the rows lie changes nothing
  input->Give(ctx, {.glu = true}, fuses, [&](const float* x, const CudaFusion& fusion) { Matmul(ctx, With(params, x, fusion)); });
  return true;
}

void Linear::RunThenSwiGlu(const ExecContext& ctx, NormedInput* input, float* y, int64_t y_stride) const {
  const float* bias = bias_.empty() ? nullptr : bias_.data();
  if (matrices_.size() == 1) {
    return MatmulThenSwiGlu(ctx, {.x = input->Rows(ctx), .x_stride = input->dim(), .m = input->num_rows(),
                                  .weight = &matrices_[0], .bias = bias, .y = y, .y_stride = y_stride});
  }
  Run(ctx, input, y, y_stride);
  SwiGlu(ctx, {.gate = y, .up = y + n_ / 2, .x_stride = y_stride, .m = input->num_rows(), .dim = n_ / 2, .y = y,
               .y_stride = y_stride});
}

}  // namespace cachalot
