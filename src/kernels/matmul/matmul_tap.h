// MatmulTap: sees what weights are multiplied with, for statistics over a text (importance matrices). One for the whole
// process while a ScopedMatmulTap lives, to be set before a model is loaded; without one, asking costs a relaxed load.
// Only matmuls on the CPU are seen, each on the thread that runs the step.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "kernels/matmul/matmul.h"

namespace cachalot {

class MatmulTap {
 public:
  virtual ~MatmulTap() = default;
  // While loading: `matrix` holds the tensor `name`, or its slice `idx` of `count` (experts, heads). Its data pointer is
  // what tells it apart from now on; one matrix may hold several tensors.
  virtual void OnMatrix(const PackedMatrix& matrix, const std::string& name, int32_t idx, int32_t count) = 0;
  // While computing: the rows of x of one product.
  virtual void OnRows(const MatmulGroup& group) = 0;
};

namespace internal {
extern std::atomic<MatmulTap*> g_matmul_tap;
}  // namespace internal

inline MatmulTap* CurrentMatmulTap() { return internal::g_matmul_tap.load(std::memory_order_relaxed); }

class ScopedMatmulTap {
 public:
  explicit ScopedMatmulTap(MatmulTap* tap) { internal::g_matmul_tap = tap; }
  ~ScopedMatmulTap() { internal::g_matmul_tap = nullptr; }
  ScopedMatmulTap(const ScopedMatmulTap&) = delete;
  ScopedMatmulTap& operator=(const ScopedMatmulTap&) = delete;
};

}  // namespace cachalot
