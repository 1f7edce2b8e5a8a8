// What matmul.cc (validation, choice, threads) shares with the variants. Internal to the op.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/matmul/matmul.h"

namespace cachalot {

// Both public forms in one: a plain matmul is one group; only it has a bias.
struct MatmulCall {
  std::span<const MatmulGroup> groups;  // at least one
  const float* bias = nullptr;
  bool accumulate = false;
  bool swiglu = false;  // y's first half becomes SwiGlu of its halves
};

inline void CountWeightBytes(const ExecContext& ctx, int64_t bytes) {
  if (ctx.counters != nullptr) ctx.counters->weight_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

void MatmulRef(const ExecContext& ctx, const MatmulCall& call);

}  // namespace cachalot
