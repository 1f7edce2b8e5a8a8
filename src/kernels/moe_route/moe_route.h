// The router of a mixture of experts: scores → the top-k experts of each token and their weights; and the
// sort of (token, expert) pairs by expert that the grouped matmuls consume.
#pragma once

#include <cstdint>

#include "device/exec_context.h"

namespace cachalot {

enum class MoeScore : uint8_t { kSoftmax, kSigmoid };
enum class MoeGroupScore : uint8_t {
  kNone,     // no groups
  kMax,      // DeepSeek-V2 "group_limited_greedy": a group's score is its best expert's
  kTop2Sum,  // DeepSeek-V3 "noaux_tc": the sum of its two best
};

struct MoeRouteParams {
  const float* logits = nullptr;  // [num_tokens, num_experts], F32
  int64_t num_tokens = 0;
  int32_t num_experts = 0;
  int32_t top_k = 0;
  MoeScore score = MoeScore::kSoftmax;
  // Added to the scores for the choice only, never for the weights (e_score_correction_bias); [num_experts]
  // or null.
  const float* choice_bias = nullptr;
  MoeGroupScore group_score = MoeGroupScore::kNone;
  int32_t num_groups = 1;    // divides num_experts
  int32_t top_k_groups = 1;  // experts of the other groups cannot be chosen
  bool normalize = false;    // weights divided by their sum (+ 1e-20 for sigmoid scores, as DeepSeek does)
  float scaling = 1.0f;      // then multiplied by this

  // Sorted by falling choice score, the lower index first among equals.
  int32_t* expert_ids = nullptr;  // [num_tokens, top_k]
  float* weights = nullptr;       // [num_tokens, top_k]
};
void MoeRoute(const ExecContext& ctx, const MoeRouteParams& params);
// Scratch of one call, however many tokens.
int64_t MoeRouteWorkspaceBytes(int num_threads, int32_t num_experts, int32_t num_groups, int32_t top_k);

struct MoeSortParams {
  const int32_t* expert_ids = nullptr;  // [num_tokens, top_k]
  const float* weights = nullptr;       // [num_tokens, top_k]
  int64_t num_tokens = 0;
  int32_t top_k = 0;
  int32_t num_experts = 0;

  int32_t* expert_begin =
      nullptr;  // [num_experts + 1]: expert e owns pairs [expert_begin[e], expert_begin[e+1])
  int32_t* token_rows = nullptr;  // [num_tokens * top_k]: the token of each pair, ascending within an expert
  float* pair_weights = nullptr;  // [num_tokens * top_k]
  int32_t* expert_counts = nullptr;  // [num_experts] or null: += the pairs of each
  // Optional, [num_tokens, top_k]: the pairs of each token, ascending (so by expert); -1 behind them where pairs are left out.
  int32_t* token_pairs = nullptr;
};
void MoeSort(const ExecContext& ctx, const MoeSortParams& params);

}  // namespace cachalot
