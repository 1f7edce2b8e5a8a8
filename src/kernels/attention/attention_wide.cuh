// Which tiles the prefill kernel on wgmma takes (attention_prefill_sm90.cu), and which are left to the one on mma.sync: part of a plan.
#pragma once

#include "device/cuda/clamped_half.cuh"
#include "kernels/attention/attention_split.cuh"

namespace cachalot {

inline constexpr int kWideTileRows = 128;

struct WideCounts {
  int32_t num_narrow;
  int32_t num_wide;
  uint32_t next_wide;  // dealt so far, of all KV heads; 0 between ops
};

// Pointers into a plan's memory, behind the AttentionSchedule.
struct WideSchedule {
  WideCounts* counts;
  int2* first;          // [num_spans]: of its tiles in narrow and wide
  PrefillItem* narrow;  // [max_narrow]: tiles of kPrefillTileRows, whose rows are in no tile of `wide`
  PrefillItem* wide;    // [max_wide]: tiles of kWideTileRows that see more than kPreciseTokens
  int32_t max_narrow;
  int32_t max_wide;
  int64_t end;          // bytes from the plan's begin on
};
WideSchedule MakeWideSchedule(const AttentionSchedule& schedule, const CudaBatch& batch);
// Makes both on the device (attention_plan_kernels_sm80.cu).
void LaunchPlan(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const WideSchedule& wide);
// Of two batches, in one launch where both have few spans.
struct PlanTask {
  const CudaBatch* batch;
  AttentionSchedule schedule;
  WideSchedule wide;
};
void LaunchPlans(const CudaExec& exec, const PlanTask& first, const PlanTask& second);

// Beside PrefillCovers.
bool WidePrefillCovers(const AttentionParams& params);
CudaStatus RunWidePrefill(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const WideSchedule& wide,
                          const AttentionParams& params);

#ifdef __CUDACC__

// Where the F16 copy of values 2 quad and 2 quad + 1 of a row goes; null: nowhere.
template <int kValueDim>
__device__ __forceinline__ uint16_t* HalfPairAt(const AttentionParams& p, const TileRow& row, int quad) {
  if (p.out_half.data == nullptr) return nullptr;
  return static_cast<uint16_t*>(p.out_half.data) + row.row * p.out_half.stride + row.head * kValueDim + quad * 2;
}

// A span's tiles for the prefill kernels: the first `narrow` of kPrefillTileRows, the last `wide` of all_wide of kWideTileRows.
struct WideTiles {
  int narrow;
  int wide;
  int all_wide;
};
__device__ __forceinline__ WideTiles WideTilesOf(const AttentionSchedule& s, const SeqSpan& span) {
  const int64_t rows = int64_t{span.q_len} * s.group;
  const int few = kPreciseTokens - (span.kv_len - span.q_len);  // tokens of the span that see no more
  int64_t before = few <= 0 ? 0 : int64_t{few} * s.group / kWideTileRows * kWideTileRows;
  if (few >= span.q_len || (s.window > 0 && s.window <= kPreciseTokens)) before = rows;
  const auto all_wide = static_cast<int>((rows + kWideTileRows - 1) / kWideTileRows);
  return {static_cast<int>((before + kPrefillTileRows - 1) / kPrefillTileRows),
          before == rows ? 0 : all_wide - static_cast<int>(before / kWideTileRows), all_wide};
}

#endif

}  // namespace cachalot
