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
};

void MatmulRef(const ExecContext& ctx, const MatmulCall& call);

}  // namespace cachalot
