#include "tensor/tensor_view.h"

namespace cachalot {

TensorView::TensorView(void* data, DType dtype, std::initializer_list<int64_t> shape) : data(data), dtype(dtype) {
  CHECK(shape.size() <= kMaxDims);
  for (int64_t dim : shape) dims[num_dims++] = dim;
  int64_t stride = 1;
  for (int i = num_dims - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= dims[i];
  }
}

int64_t TensorView::num_values() const {
  int64_t count = 1;
  for (int i = 0; i < num_dims; ++i) count *= dims[i];
  return count;
}

std::string ShapeString(const int64_t* dims, int num_dims) {
  std::string text = "[";
  for (int i = 0; i < num_dims; ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

}  // namespace cachalot
