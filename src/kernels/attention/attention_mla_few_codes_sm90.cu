// Absorbed MLA over a quantised latent cache for steps of few rows: up to 16 (token, head) a sequence, as in decoding with 16 heads. A
// warpgroup attends runs of 16 tokens as attention_codes_run.cuh does, each of its warps 128 of the 512 columns, as keys and as values;
// for the softmax they hand each other their parts of the scores, those of the next run while the weights and sums of this one are computed:
// they meet once a run, and none waits for what it has just asked the others for. Three warpgroups on an SM take the runs of an item in turn.
// More rows are strips of 16, each of which takes all codes apart.
//
// Bound: memory. k6v8: 528 bytes a token; at 18.6 bytes a clock a run takes 454 clocks of an SM. Shared memory: about 100 accesses of 128 bytes
// a warp and run, 400 clocks. Instructions: about 600 a warp and run, one warp of a warpgroup on each scheduler, so 600 clocks.
#include <algorithm>

#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "kernels/attention/attention_codes_run.cuh"
#include "kernels/attention/attention_latent_run.cuh"
#include "kernels/attention/attention_prefetch.cuh"
#include "kernels/attention/attention_stream_merge.cuh"

namespace cachalot {
namespace {

constexpr int kGroups = 3;  // warpgroups
constexpr int kThreads = kGroups * 128;
constexpr int kSlots = 5;  // of a warp: the run whose values are added, the one whose scores are computed, three under way

// All of the block's shared memory.
template <KvCode kCode>
struct Shared {
  static constexpr int kConsumers = kGroups;  // that are merged
  union {
    unsigned char rings[kThreads / 32][kSlots * LatentSlot<kCode>::kBytes];
    float merge[kGroups][kCodeRows][kLatentDim + kMergePad];  // when all runs of an item have been read
  };
  float warp_m[kGroups][kCodeRows], warp_l[kGroups][kCodeRows];
  float4 handed[kGroups][2][kLatentParts * 2 * 32];  // scores of parts, of one run and the next
  SharedLatentQueries<kCode> queries;
};

__device__ __forceinline__ void MeetGroup(int group) { asm volatile("bar.sync %0, 128;\n" ::"r"(group + 1) : "memory"); }

// A part's scores for the others. `handed`: the group's, `mine`: which of them this lane writes.
__device__ __forceinline__ void HandOver(const float (&s)[2][4], int mine, float4* handed) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) handed[mine + tile * 32] = {s[tile][0], s[tile][1], s[tile][2], s[tile][3]};
}
// The scores of all four, when they have met: the same sum in each of the warps.
__device__ __forceinline__ void AddParts(const float4* handed, int lane, float (&s)[2][4]) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const float4* from = handed + tile * 32 + lane;
    const float4 a = from[0], b = from[64], c = from[128], d = from[192];
    s[tile][0] = (a.x + b.x) + (c.x + d.x);
    s[tile][1] = (a.y + b.y) + (c.y + d.y);
    s[tile][2] = (a.z + b.z) + (c.z + d.z);
    s[tile][3] = (a.w + b.w) + (c.w + d.w);
  }
}

template <KvCode kCode>
__global__ __launch_bounds__(kThreads, 1) void FewCodesKernel(const __grid_constant__ AttentionParams p, const __grid_constant__ CodePlanes planes,
                                                              const SeqSpan* spans, const __grid_constant__ AttentionSchedule s, int strips,
                                                              bool aligned) {
#if __CUDA_ARCH__ >= 900
  using Values = LatentValues<kCode>;
  using Slot = LatentSlot<kCode>;
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kCode>*>(memory);
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, group = warp / kLatentParts, part = warp % kLatentParts;
  const uint32_t ring = SharedAddress(shared.rings[warp]);
  LetNextKernelStart();
  PrefetchUpcoming(p);
  WaitForEarlierKernels();
  const int num_items = s.counts->num_items;
  for (int work = static_cast<int>(blockIdx.x); work < num_items * strips; work += static_cast<int>(gridDim.x)) {
    const SplitItem item = s.items[work / strips];
    const SeqSpan span = spans[item.span];
    const int tile_rows = TileRowsOf(s, span), strip_row = work % strips * kCodeRows, first_row = item.tile * tile_rows + strip_row;
    const int rows = min(min(tile_rows - strip_row, span.q_len * s.group - first_row), kCodeRows);
    if (rows <= 0) continue;
    const TileRange range = RangeOfTile(span, item.tile, tile_rows, s.group, s.window);
    const int low = max(range.begin, item.begin), high = min(range.end, item.end), first_run = low / kRunTokens;
    const int runs = (high + kRunTokens - 1) / kRunTokens - first_run;
    RunPlaces places(p.kv, planes, span.slot, 0, first_run + group, kGroups, max((runs - group + kGroups - 1) / kGroups, 0));
    __syncthreads();  // the last item has been merged
#pragma unroll
    for (int i = 0; i < kSlots - 1; ++i) {
      if (i < places.count()) CopyLatents<kCode>(planes, places.At(i), part, ring + i * Slot::kBytes);
      CommitAsync();
    }
    for (int r = warp; r < kCodeRows; r += kThreads / 32) {
      StoreLatentRow<kCode>(p, planes, RowOfTile(span, first_row + r, s.group, 0), r, aligned, &shared.queries);
    }
    __syncthreads();
    LatentQueries<kCode> q;
    LoadLatentQueries<kCode>(shared.queries, part, &q);
    Visible visible;
    int whole_low = low, whole_high = high;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const TileRow row = RowOfTile(span, first_row + lane / 4 + 8 * r, s.group, 0);
      const bool exists = row.position >= 0;  // else it sees whatever there is
      visible.begin[r] = exists ? max(VisibleBegin(row.position, s.window), low) : low;
      visible.end[r] = exists ? min(row.position + 1, high) : high;
      whole_low = max(whole_low, visible.begin[r]);
      whole_high = min(whole_high, visible.end[r]);
    }
    whole_low = __reduce_max_sync(kAllLanes, whole_low);
    whole_high = __reduce_min_sync(kAllLanes, whole_high);
    CodeState<Values> state;
    state.Clear();
    uint32_t slot = ring, last = ring + (kSlots - 1) * Slot::kBytes;
    if (places.count() > 0) {
      LatentKeyCodes<kCode> keys;
      float scores[2][4];
      WaitAsync<kSlots - 2>();
      __syncwarp();
      ReadLatentKeys<kCode>(slot, part, &keys);
      LatentScores<kCode>(keys, q, scores);
      HandOver(scores, part * 64 + lane, shared.handed[group][0]);
    }
    // A run's values, while the scores of the next one are computed (of what lies there when there is none: nobody reads them).
#pragma unroll 1
    for (int i = 0; i < places.count(); ++i) {
      const int t0 = places.PositionOf(i);
      const uint32_t next = slot == ring + (kSlots - 1) * Slot::kBytes ? ring : slot + Slot::kBytes;
      LatentKeyCodes<kCode> keys;
      LatentValueCodes<kCode> values;
      float scores[2][4], next_scores[2][4], rescale[2];
      MeetGroup(group);  // the run's scores are there, and every lane has read the last run
      if (i + kSlots - 1 < places.count()) CopyLatents<kCode>(planes, places.At(i + kSlots - 1), part, last);
      CommitAsync();
      WaitAsync<kSlots - 2>();
      __syncwarp();  // every lane's copies are there
      AddParts(shared.handed[group][i % 2], lane, scores);
      ReadLatentKeys<kCode>(next, part, &keys);
      if (t0 < whole_low || t0 + kRunTokens > whole_high) HideUnseen(scores, t0, visible);
      SoftmaxRun(scores, q.factor, &state, rescale);
      LatentScores<kCode>(keys, q, next_scores);
      HandOver(next_scores, part * 64 + lane, shared.handed[group][(i + 1) % 2]);
      ReadLatentValues<kCode>(slot, part, t0, low, high, &values);
      uint32_t weights[4], scales[2];
      float value_scale[4];
      values.Largest(scales);
      ScaleRun(scores, rescale, scales, &state, weights, value_scale);
      AddLatents<kCode>(values, scores, weights, value_scale, &state);
      last = slot;
      slot = next;
    }
    // Warpgroups meet equally often: racecheck loses count else.
    for (int i = places.count(); i < (runs + kGroups - 1) / kGroups; ++i) MeetGroup(group);
    state.Finish(q.factor);

    __syncthreads();  // all runs have been read
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + 8 * r;
      float l = state.l[r];
      l += __shfl_xor_sync(kAllLanes, l, 1);
      l += __shfl_xor_sync(kAllLanes, l, 2);
      if (part == 0 && lane % 4 == 0) {
        shared.warp_m[group][row] = state.m[r];
        shared.warp_l[group][row] = l;
      }
      StoreSums(state, r, lane % 4, &shared.merge[group][row][part * kLatentColumns]);
    }
    __syncthreads();
    for (int e = tid; e < rows * (kLatentDim / 4); e += kThreads) {
      const int row = e / (kLatentDim / 4), d = e % (kLatentDim / 4) * 4;
      const Folded merged = MergedWarps(shared, row, d);
      if (item.partial < 0) {
        const TileRow to = RowOfTile(span, first_row + row, s.group, 0);
        merged.Write(p.out + to.row * p.out_token_stride + to.head * p.out_head_stride + d);
      } else {
        const int64_t at = int64_t{item.partial} * s.partial_rows + strip_row + row;
        *reinterpret_cast<float4*>(s.partial_out + at * kLatentDim + d) = merged.sum;
        if (d == 0) s.partial_stats[at] = {merged.m, merged.l};
      }
    }
  }
#endif
}

template <KvCode kCode>
CudaStatus Launch(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                  const CodePlanes& planes) {
  static_assert(sizeof(Shared<kCode>) <= 227 * 1024);
  auto* kernel = &FewCodesKernel<kCode>;
  if (CudaStatus failure = AllowSharedBytes(kernel, int64_t{sizeof(Shared<kCode>)}, "attention MLA of few rows over codes")) return failure;
  const bool aligned = params.q_token_stride % 4 == 0 && params.q_head_stride % 4 == 0 && reinterpret_cast<uintptr_t>(params.q) % 16 == 0;
  // A tile's strips beside each other in time: they meet in L2.
  const int most = std::max(schedule.rows_per_tile, schedule.precise_rows);
  const int strips = (static_cast<int>(std::min(int64_t{batch.max_q_len} * schedule.group, int64_t{most})) + kCodeRows - 1) / kCodeRows;
  const auto grid = static_cast<unsigned>(std::min(int64_t{schedule.max_items} * strips, int64_t{exec.num_sms}));
  LaunchOverlapped<LaunchRole::kAttention>(kernel, grid, kThreads, int64_t{sizeof(Shared<kCode>)}, exec.stream, params, planes, batch.spans, schedule,
                                           strips, aligned);
  return CudaLaunched("attention MLA of few rows over codes, %d spans, %d heads", batch.num_spans, params.num_q_heads);
}

constexpr int kMostRows = 128;  // of a sequence, with mla=stream
// Scales of as many columns as this kernel's warps expect.
constexpr int GroupsOf(KvCode code) { return code == KvCode::kInt4 ? 16 : code == KvCode::kInt6 ? 8 : 4; }

}  // namespace

bool FewMlaCodesCover(const CudaBatch& batch, const AttentionSchedule& schedule, const CodePlanes& planes) {
  const int rows = CurrentTune().mla == CudaTune::Mla::kRounds ? 0 : CurrentTune().mla == CudaTune::Mla::kStream ? kMostRows : kCodeRows;
  return int64_t{batch.max_q_len} * schedule.group <= rows && planes.key.groups == GroupsOf(planes.key.code);
}

CudaStatus RunFewMlaCodes(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                          const CodePlanes& planes) {
  switch (planes.key.code) {
    case KvCode::kInt8:
      return Launch<KvCode::kInt8>(exec, batch, schedule, params, planes);
    case KvCode::kInt6:
      return Launch<KvCode::kInt6>(exec, batch, schedule, params, planes);
    case KvCode::kInt4:
      return Launch<KvCode::kInt4>(exec, batch, schedule, params, planes);
    default:
      return Launch<KvCode::kE4M3>(exec, batch, schedule, params, planes);
  }
}

}  // namespace cachalot
