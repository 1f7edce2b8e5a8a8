// Folds the sequences that several blocks of MLA's streaming kernel have attended, behind it
// (attention_mla_fold_sm90.cu).
#pragma once

#include "kernels/attention/attention_mla_stream.cuh"

namespace cachalot {

inline constexpr int kMlaFoldThreads = 256;
inline constexpr int kMlaFoldWarps = kMlaFoldThreads / 32;

// All of the block's shared memory.
struct MlaFoldMemory {
  union {
    float2 stats[kMlaMostPieces][kMlaHeads];  // largest, sum; then in the largest's place the factor
    float4 parts[kMlaFoldThreads];
  };
  float of_warps[2][kMlaFoldWarps][kMlaHeads];  // largest, sums
  float inverse_l[kMlaHeads];
};

void LaunchMlaFold(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                   const AttentionParams& params);

}  // namespace cachalot
