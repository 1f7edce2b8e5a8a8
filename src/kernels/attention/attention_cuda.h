// Attention on the GPU: one schedule a step for all layers of a shape. The parameters are AttentionParams, with device
// pointers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cachalot {

// All that a schedule depends on: layers of the same shape share one plan.
struct CudaAttentionShape {
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t k_dim = 0;
  int32_t v_dim = 0;
  int32_t window = 0;

  bool operator==(const CudaAttentionShape&) const = default;
};
struct CudaAttentionPlan {
  CudaAttentionShape shape;
  std::byte* memory = nullptr;  // attention_plan_bytes(shape, batch, num_sms), 256-byte aligned
  int64_t memory_bytes = 0;
};

}  // namespace cachalot
