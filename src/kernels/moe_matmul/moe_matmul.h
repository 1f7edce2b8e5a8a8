// The experts' matmuls of a mixture: (token, expert) pairs, sorted by expert (MoeSort), each against its expert's matrix.
// How many pairs an expert has is read where the sort left it, on the device too. Only chosen experts' weights are read.
#pragma once

#include <cstdint>
#include <vector>

#include "device/exec_context.h"
#include "kernels/matmul/matmul.h"

namespace cachalot {

// One matrix [n, k] an expert, all of one type. On the GPU they are found through tables in device memory.
struct ExpertMatrices {
  std::vector<PackedMatrix> experts;
  const std::byte* const* device_data = nullptr;    // [num_experts]
  const float* const* device_scales = nullptr;      // [num_experts], FP8 only

  int32_t num_experts() const { return static_cast<int32_t>(experts.size()); }
  int64_t n() const { return experts.front().n; }
  int64_t k() const { return experts.front().k; }
};

struct MoePairs {
  const int32_t* expert_begin = nullptr;  // [num_experts + 1]
  const int32_t* token_rows = nullptr;    // [max_pairs]: the token of each pair
  const float* weights = nullptr;         // [max_pairs]: of each pair
  const int32_t* token_pairs = nullptr;   // GPU: [num_tokens, top_k], the pairs of a token in rising order
  int64_t num_tokens = 0;
  int32_t top_k = 0;
  int64_t max_pairs() const { return num_tokens * top_k; }
};

// y[pair] = x[token of the pair] · W_expertᵀ
struct MoeMatmulParams {
  MoePairs pairs;
  const float* x = nullptr;  // [num_tokens, k]
  int64_t x_stride = 0;
  bool x_by_pair = false;    // GPU: x [max_pairs, k], a row for each pair
  const ExpertMatrices* weights = nullptr;
  float* y = nullptr;  // [max_pairs, n]
  int64_t y_stride = 0;
  CudaFusion fusion = {};  // only where MoeMatmulFuses
};
void MoeMatmul(const ExecContext& ctx, const MoeMatmulParams& params);
// Whether the call, with its fusion, is one launch; never on the CPU.
bool MoeMatmulFuses(const ExecContext& ctx, const MoeMatmulParams& params);

// Experts and, beside them, a dense matmul in one launch; only where MoePairFuses, never on the CPU. Neither reads what the other
// writes.
struct MoePairParams {
  MoeMatmulParams experts = {};
  MatmulParams dense = {};
};
void MoePair(const ExecContext& ctx, const MoePairParams& params);
bool MoePairFuses(const ExecContext& ctx, const MoePairParams& params);

// residual[token] += the sum over its pairs, in rising expert order, of weight · (x[pair] · W_expertᵀ)
struct MoeReduceParams {
  MoePairs pairs;
  const float* x = nullptr;  // [max_pairs, k]
  int64_t x_stride = 0;
  const ExpertMatrices* weights = nullptr;
  float* residual = nullptr;  // [num_tokens, n]
  int64_t residual_stride = 0;
  // Or null: added behind the pairs, shared_x [num_tokens, k of shared] · sharedᵀ.
  const PackedMatrix* shared = nullptr;
  const float* shared_x = nullptr;
  int64_t shared_x_stride = 0;
};
void MoeReduce(const ExecContext& ctx, const MoeReduceParams& params);

struct MoeGateParams;
// All that is behind the router, or the router too, for a few tokens, in a launch or two (moe_few.cuh); only where MoeFewFuses, never on the CPU. As MoeMatmul
// with SwiGLU and MoeReduce, the products of gate/up rounded to F16.
struct MoeFewParams {
  MoePairs pairs;
  const float* x = nullptr;  // [num_tokens, k of up]; `norm`: of its rows, first
  int64_t x_stride = 0;
  CudaFusion norm = {};
  const ExpertMatrices* up = nullptr;
  const ExpertMatrices* down = nullptr;
  const PackedMatrix* shared_up = nullptr;    // or null, both
  const PackedMatrix* shared_down = nullptr;
  float* h = nullptr;         // scratch [max_pairs, k of down]
  float* shared_h = nullptr;  // scratch [num_tokens, k of shared_down]
  float* residual = nullptr;  // [num_tokens, n of down]; may be x
  int64_t residual_stride = 0;
  const MoeGateParams* gate = nullptr;  // or null: done by the same launch, of the same x; it makes `pairs`
};
void MoeFew(const ExecContext& ctx, const MoeFewParams& params);
bool MoeFewFuses(const ExecContext& ctx, const MoeFewParams& params);

int64_t MoeMatmulWorkspaceBytes(int64_t max_pairs, int32_t num_experts, int64_t k, int num_threads);

}  // namespace cachalot
