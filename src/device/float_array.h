// FloatArray: small float weights (norms, biases, frequencies) where their layer lives: owned in host memory, or in device
// memory that belongs to the model.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace cachalot {

class FloatArray {
 public:
  FloatArray() = default;
  explicit FloatArray(std::vector<float> values) : host_(std::move(values)), size_(static_cast<int64_t>(host_.size())) {}
  static FloatArray OnDevice(const float* data, int64_t size) {
    FloatArray array;
    array.device_ = data;
    array.size_ = size;
    return array;
  }

  const float* data() const { return device_ != nullptr ? device_ : host_.data(); }
  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  std::vector<float> host_;
  const float* device_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace cachalot
