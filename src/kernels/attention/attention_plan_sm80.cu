// The schedule of a step's attention (attention_plan_kernels_sm80.cu makes it on the device): where it lies; and the choice of kernels.
#include <algorithm>
#include <utility>

#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_codes.cuh"
#include "kernels/attention/attention_split.cuh"
#include "kernels/attention/attention_wide.cuh"
#include "kernels/matmul/matmul_launch.h"

namespace cachalot {
namespace {

constexpr int kPrefetchRows = 4;
constexpr int kFewRows = 2;  // up to which the streaming kernel has a block on each SM, above two

bool IsMla(const CudaAttentionShape& shape) {
  return shape.num_kv_heads == 1 && shape.k_dim == 576 && shape.v_dim == 512;
}
// Shapes that have a prefill kernel; and of those the ones that have it alone.
bool HasPrefill(const CudaAttentionShape& shape) {
  return (shape.k_dim == 64 && shape.v_dim == 64) || (shape.k_dim == 128 && shape.v_dim == 128) ||
         (shape.k_dim == 192 && shape.v_dim == 128);
}
bool HasDecode(const CudaAttentionShape& shape) {
  return shape.k_dim == shape.v_dim && (shape.k_dim == 64 || shape.k_dim == 128 || shape.k_dim == 256);
}
bool HasMlaStream(const CudaAttentionShape& shape, const CudaBatch& batch) {
  return IsMla(shape) && shape.num_q_heads <= kMlaStreamRows && batch.max_q_len == 1 && CurrentCard().RunsHopperCode();
}
bool HasStream(const CudaAttentionShape& shape) {
  return shape.k_dim == shape.v_dim && (shape.k_dim == 64 || shape.k_dim == 128) && CurrentCard().RunsHopperCode();
}

constexpr int kCombineColumns = 128;  // of a warp: its lanes take four each
constexpr int kCombineWarps = 8;

// Folds the splits of the tiles that are cut: of one row of a tile and kCombineColumns columns a time, by as many warps as
// there are to spare, each an equal share of the splits. The blocks stay, so that their number need not be known.
__global__ __launch_bounds__(kCombineWarps * 32) void CombineKernel(AttentionParams p, const SeqSpan* spans, AttentionSchedule s,
                                                                     bool in_order) {
  __shared__ float4 sums[kCombineWarps][32];
  __shared__ float2 stats[kCombineWarps];
  LetNextKernelStart();
  WaitForEarlierKernels();
  const int chunks = p.kv.v_dim / kCombineColumns, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t num_work = int64_t{s.counts->num_cut_tiles} * s.num_kv_heads * s.partial_rows * chunks;
  int ways = in_order ? 1 : kCombineWarps;
  while (ways > 1 && num_work * ways > int64_t{gridDim.x} * kCombineWarps) ways /= 2;
  const int at_a_time = kCombineWarps / ways, way = warp % ways;
  for (int64_t base = int64_t{blockIdx.x} * at_a_time; base < num_work; base += int64_t{gridDim.x} * at_a_time) {
    const int64_t work = base + warp / ways;
    const int d = static_cast<int>(work % chunks) * kCombineColumns + lane * 4;
    const int r = static_cast<int>(work / chunks % s.partial_rows);
    const int64_t pair = work / chunks / s.partial_rows;
    const int kv_head = static_cast<int>(pair % s.num_kv_heads);
    Folded folded = {-CUDART_INF_F, 0, {0, 0, 0, 0}};
    TileRow row = {0, 0, -1};
    if (work < num_work) {
      const CutTile cut = s.cut_tiles[pair / s.num_kv_heads];
      const SeqSpan span = spans[cut.span];
      const int tile_rows = TileRowsOf(s, span), share = (cut.num_splits + ways - 1) / ways;
      const int begin = min(way * share, cut.num_splits), end = min(begin + share, cut.num_splits);
      if (r < tile_rows) row = RowOfTile(span, cut.tile * tile_rows + r, s.group, kv_head);
      if (row.position >= 0) folded = FoldSplits(s, int64_t{cut.first_partial} + begin, end - begin, kv_head, r, d, p.kv.v_dim);
    }
    if (ways > 1) {
      sums[warp][lane] = folded.sum;
      if (lane == 0) stats[warp] = {folded.m, folded.l};
      __syncthreads();
      for (int w = 1; w < ways && way == 0; ++w) folded.Add(stats[warp + w].x, stats[warp + w].y, sums[warp + w][lane]);
      __syncthreads();
    }
    if (way == 0 && row.position >= 0) folded.Write(p.out + row.row * p.out_token_stride + row.head * p.out_head_stride + d);
  }
}

}  // namespace

AttentionSchedule MakeAttentionSchedule(const CudaAttentionShape& shape, const CudaBatch& batch, int32_t num_sms,
                                        bool deterministic, std::byte* memory) {
  AttentionSchedule s = {};
  s.num_kv_heads = shape.num_kv_heads;
  s.group = shape.num_q_heads / shape.num_kv_heads;
  s.window = shape.window;
  const bool mla = IsMla(shape);
  const int64_t most_rows = int64_t{s.group} * batch.max_q_len;  // of a span
  s.rows_per_tile = s.precise_rows = s.partial_rows = 16;
  if (mla) {
    s.precise_rows = kMlaPreciseRows;
    s.rows_per_tile = deterministic || most_rows <= kMlaPreciseRows ? kMlaPreciseRows : kMlaTileRows;
    s.partial_rows = static_cast<int32_t>(most_rows < kMlaTileRows ? (most_rows + 15) / 16 * 16 : kMlaTileRows);
  }
  s.max_split_rows = INT32_MAX;
  if (!deterministic && HasPrefill(shape)) s.max_split_rows = HasDecode(shape) ? kMaxDecodeRows : 0;
  const int blocks_per_sm = mla || shape.k_dim > 128 ? 1 : 2;
  s.blocks = blocks_per_sm * num_sms / shape.num_kv_heads;
  if (s.blocks < 1) s.blocks = 1;
  s.least_split = mla ? 64 : 128;
  s.item_cost = 96;
  s.most_cut_tiles = mla ? kMostCutMlaTiles : kMostCutTiles;

  s.stream_blocks_per_sm = mla || batch.num_rows <= kFewRows ? 1 : 2;
  s.stream_blocks = (HasStream(shape) || HasMlaStream(shape, batch)) && !deterministic ? s.stream_blocks_per_sm * num_sms : 0;

  // Bounds on what the spans can ask for.
  const int64_t rows = int64_t{batch.num_rows} * s.group;
  s.max_partials = 4 * s.blocks > 512 ? 4 * s.blocks : 512;
  s.max_items = static_cast<int32_t>(rows / 16 + batch.num_spans + s.max_partials);
  s.max_prefill = static_cast<int32_t>(rows / kPrefillTileRows + batch.num_spans);
  const int64_t partial_rows = int64_t{s.max_partials} * shape.num_kv_heads * s.partial_rows;
  int64_t at = 0;
  const auto take = [&](int64_t bytes) {
    std::byte* pointer = memory == nullptr ? nullptr : memory + at;
    at += (bytes + 255) / 256 * 256;
    return pointer;
  };
  s.counts = reinterpret_cast<ScheduleCounts*>(take(sizeof(ScheduleCounts)));
  s.spans = reinterpret_cast<SpanSplits*>(take(batch.num_spans * int64_t{sizeof(SpanSplits)}));
  s.items = reinterpret_cast<SplitItem*>(take(s.max_items * int64_t{sizeof(SplitItem)}));
  s.prefill = reinterpret_cast<PrefillItem*>(take(s.max_prefill * int64_t{sizeof(PrefillItem)}));
  s.cut_tiles = reinterpret_cast<CutTile*>(take(s.max_partials / 2 * int64_t{sizeof(CutTile)}));
  s.shares = reinterpret_cast<StreamShare*>(take(2 * num_sms * int64_t{sizeof(StreamShare)}));
  s.arrivals = reinterpret_cast<int32_t*>(take(int64_t{s.max_partials} * shape.num_kv_heads * int64_t{sizeof(int32_t)}));
  s.partial_stats = reinterpret_cast<float2*>(take(partial_rows * int64_t{sizeof(float2)}));
  s.partial_out = reinterpret_cast<float*>(take(partial_rows * shape.v_dim * int64_t{sizeof(float)}));
  s.log_sums = reinterpret_cast<float*>(take(int64_t{batch.num_rows} * shape.num_q_heads * int64_t{sizeof(float)}));
  if (mla) {
    s.fold_memory = reinterpret_cast<float*>(take(int64_t{num_sms} * kMlaPreciseRows * shape.v_dim * int64_t{sizeof(float)}));
  }
  s.bytes = at;
  return s;
}

WideSchedule MakeWideSchedule(const AttentionSchedule& s, const CudaBatch& batch) {
  const int64_t rows = int64_t{batch.num_rows} * s.group;
  const int64_t few_tiles = batch.num_spans * (int64_t{kPreciseTokens} * s.group / kPrefillTileRows + 1);
  const bool all_narrow = s.window > 0 && s.window <= kPreciseTokens;
  WideSchedule w = {};
  w.max_wide = static_cast<int32_t>(rows / kWideTileRows + batch.num_spans);
  w.max_narrow = all_narrow ? s.max_prefill : static_cast<int32_t>(std::min<int64_t>(s.max_prefill, few_tiles));
  int64_t at = s.bytes;
  const auto take = [&](int64_t bytes) {
    std::byte* pointer = s.counts == nullptr ? nullptr : reinterpret_cast<std::byte*>(s.counts) + at;
    at += (bytes + 255) / 256 * 256;
    return pointer;
  };
  w.counts = reinterpret_cast<WideCounts*>(take(sizeof(WideCounts)));
  w.first = reinterpret_cast<int2*>(take(batch.num_spans * int64_t{sizeof(int2)}));
  w.narrow = reinterpret_cast<PrefillItem*>(take(w.max_narrow * int64_t{sizeof(PrefillItem)}));
  w.wide = reinterpret_cast<PrefillItem*>(take(w.max_wide * int64_t{sizeof(PrefillItem)}));
  w.end = at;
  return w;
}

CudaStatus RunCombine(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                      const AttentionParams& params) {
  constexpr int kBlocksPerSm = 4;
  const int64_t chunks = params.kv.v_dim / kCombineColumns;
  const int64_t most = std::min(int64_t{schedule.max_partials} / 2 * schedule.num_kv_heads * schedule.partial_rows,
                                int64_t{batch.num_rows} * params.num_q_heads) * chunks;
  LaunchOverlapped<LaunchRole::kAttention>(&CombineKernel, std::min(most, int64_t{exec.num_sms} * kBlocksPerSm), kCombineWarps * 32, 0, exec.stream, params,
                   batch.spans, schedule, exec.deterministic);
  return CudaLaunched("attention combine of %d rows, %d heads of %d", batch.num_rows, params.num_q_heads,
                      params.kv.v_dim);
}

int64_t CudaAttentionPlanBytes(const CudaAttentionShape& shape, const CudaBatch& batch, int32_t num_sms) {
  return MakeWideSchedule(MakeAttentionSchedule(shape, batch, num_sms, false, nullptr), batch).end;
}

namespace {

// Nothing is to be planned where there are no rows.
CudaStatus MakePlan(const CudaExec& exec, const CudaBatch& batch, const CudaAttentionPlan& plan, PlanTask* task) {
  const CudaAttentionShape& shape = plan.shape;
  if (shape.num_kv_heads <= 0 || shape.num_q_heads <= 0 || shape.num_q_heads % shape.num_kv_heads != 0) {
    return CudaFail(CudaFault::kInvalid, "attention_plan: %d query heads over %d KV heads", shape.num_q_heads,
                    shape.num_kv_heads);
  }
  task->batch = &batch;
  if (batch.num_rows == 0 || batch.num_spans == 0) return nullptr;
  task->schedule = MakeAttentionSchedule(shape, batch, exec.num_sms, exec.deterministic, plan.memory);
  task->wide = MakeWideSchedule(task->schedule, batch);
  if (task->wide.end > plan.memory_bytes) {
    return CudaFail(CudaFault::kInvalid, "attention_plan: %lld bytes, %lld needed for %d rows, %d spans",
                    static_cast<long long>(plan.memory_bytes), static_cast<long long>(task->wide.end), batch.num_rows,
                    batch.num_spans);
  }
  return nullptr;
}
bool IsEmpty(const CudaBatch& batch) { return batch.num_rows == 0 || batch.num_spans == 0; }

}  // namespace

CudaStatus CudaPlanAttention(const CudaExec& exec, const CudaBatch& batch, const CudaAttentionPlan& plan) {
  PlanTask task = {};
  if (CudaStatus failure = MakePlan(exec, batch, plan, &task)) return failure;
  if (IsEmpty(batch)) return nullptr;
  LaunchPlan(exec, batch, task.schedule, task.wide);
  return CudaLaunched("attention_plan of %d spans", batch.num_spans);
}

CudaStatus CudaPlanAttentionOfTwo(const CudaExec& exec, const CudaBatch& batch, const CudaAttentionPlan& plan, const CudaBatch& other,
                                  const CudaAttentionPlan& other_plan) {
  PlanTask tasks[2] = {};
  if (CudaStatus failure = MakePlan(exec, batch, plan, &tasks[0])) return failure;
  if (CudaStatus failure = MakePlan(exec, other, other_plan, &tasks[1])) return failure;
  if (IsEmpty(batch) || IsEmpty(other)) return CudaFail(CudaFault::kInvalid, "attention_plan of two batches, one of them empty");
  LaunchPlans(exec, tasks[0], tasks[1]);
  return CudaLaunched("attention_plan of %d and %d spans", batch.num_spans, other.num_spans);
}

namespace {

// params.out_half behind kernels that do not write it themselves.
CudaStatus CopyToHalf(const CudaExec& exec, const CudaBatch& batch, const AttentionParams& params) {
  if (params.out_half.data == nullptr) return nullptr;
  ConvertXParams convert;
  convert.x = params.out;
  convert.x_stride = params.out_token_stride;
  convert.num_rows = batch.num_rows;
  convert.k = int64_t{params.num_q_heads} * params.kv.v_dim;
  convert.aligned = reinterpret_cast<uintptr_t>(params.out) % 16 == 0 && params.out_token_stride % 4 == 0;
  convert.out = params.out_half.data;
  return ConvertX(exec, convert);
}

// Over a quantised cache. In exact and in deterministic arithmetic, and latents with sinks, by the kernel that takes every shape.
CudaStatus AttendCodes(const CudaExec& exec, const CudaBatch& batch, AttentionSchedule schedule, AttentionParams params) {
  const CodePlanes planes = CodePlanesOf(*params.kv.planes);
  const bool fast = exec.math == CudaMath::kFast && !exec.deterministic, sinks = params.kv.sinks != nullptr;
  if (sinks && !(fast && CodesCover(params, planes, schedule) && SinksCover(params, planes))) {
    if (CudaStatus failure = RunGenericCodesAttention(exec, batch, params, planes)) return failure;
    return CopyToHalf(exec, batch, params);
  }
  if (fast && CodesCover(params, planes, schedule)) {
    schedule.sinks = params.kv.sink_tokens;
    const CudaHalfRows half = sinks ? std::exchange(params.out_half, {}) : params.out_half;
    if (CudaStatus failure = RunCodesDecode(exec, batch, schedule, params, planes)) return failure;
    const bool all = int64_t{batch.max_q_len} * schedule.group <= schedule.max_split_rows;
    if (all && !sinks) return nullptr;
    if (!all) {
      if (CudaStatus failure = RunCodesPrefill(exec, batch, schedule, params, planes)) return failure;
    }
    if (sinks) {
      if (CudaStatus failure = RunSinks(exec, batch, schedule, params, planes)) return failure;
    }
    params.out_half = half;
    return CopyToHalf(exec, batch, params);
  }
  if (fast && MlaCodesCover(params, planes)) {
    const bool six = MlaSixStreamCovers(batch, schedule, planes);
    if (six || MlaCodeStreamCovers(batch, schedule, planes)) {
      const auto run = six ? &RunMlaSixStream : &RunMlaCodeStream;
      if (CudaStatus failure = run(exec, batch, schedule, params, planes)) return failure;
      return CopyToHalf(exec, batch, params);
    }
    if (CudaStatus failure = RunMlaCodes(exec, batch, schedule, params, planes)) return failure;
    if (CudaStatus failure = RunCombine(exec, batch, schedule, params)) return failure;
    if (CudaStatus failure = RunUnrotate(exec, batch, params, planes)) return failure;
    return CopyToHalf(exec, batch, params);
  }
  if (CudaStatus failure = RunGenericCodesAttention(exec, batch, params, planes)) return failure;
  return CopyToHalf(exec, batch, params);
}

}  // namespace

CudaStatus CudaAttention(const CudaExec& exec, const CudaBatch& batch, const CudaAttentionPlan& plan,
                         const AttentionParams& given) {
  AttentionParams params = given;
  // More tokens read so much of the cache that memory is busy.
  const int64_t most = batch.num_rows <= kPrefetchRows ? int64_t{CurrentTune().prefetch_kib} << 10 : 0;
  for (UpcomingBytes& upcoming : params.upcoming) upcoming.bytes = std::min(upcoming.bytes, most);
  const CudaAttentionShape& shape = plan.shape;
  const PagedKv& kv = params.kv;
  if (shape.num_q_heads != params.num_q_heads || shape.num_kv_heads != kv.num_kv_heads || shape.k_dim != kv.k_dim ||
      shape.v_dim != kv.v_dim || shape.window != params.window) {
    return CudaFail(CudaFault::kInvalid, "attention: %d/%d heads of %d/%d, window %d, planned for %d/%d, %d/%d, %d",
                    params.num_q_heads, kv.num_kv_heads, kv.k_dim, kv.v_dim, params.window, shape.num_q_heads,
                    shape.num_kv_heads, shape.k_dim, shape.v_dim, shape.window);
  }
  if (batch.num_rows == 0 || batch.num_spans == 0) return nullptr;
  const AttentionSchedule schedule =
      MakeAttentionSchedule(shape, batch, exec.num_sms, exec.deterministic, plan.memory);
  if (kv.sinks != nullptr && (kv.planes == nullptr || params.window > 0)) {
    return CudaFail(CudaFault::kInvalid, "attention: sinks beside plain values, or a window of %d", params.window);
  }
  if (kv.planes != nullptr) return AttendCodes(exec, batch, schedule, params);
  if (exec.math == CudaMath::kFast) {
    if (MlaCovers(params)) {
      if (MlaStreamCovers(batch, schedule)) {
        if (CudaStatus failure = RunMlaStream(exec, batch, schedule, params)) return failure;
        return CopyToHalf(exec, batch, params);
      }
      if (CudaStatus failure = RunMlaAttention(exec, batch, schedule, params)) return failure;
      if (CudaStatus failure = RunCombine(exec, batch, schedule, params)) return failure;
      return CopyToHalf(exec, batch, params);
    }
    const bool decode = DecodeCovers(params), prefill = !exec.deterministic && PrefillCovers(params);
    if (decode) {
      const bool stream = StreamCovers(batch, schedule);
      const auto run = stream ? &RunStreamAttention : &RunDecodeAttention;
      if (CudaStatus failure = run(exec, batch, schedule, params)) return failure;
      const bool all = int64_t{batch.max_q_len} * schedule.group <= schedule.max_split_rows;
      return all ? nullptr : RunPrefillAttention(exec, batch, schedule, params);
    }
    if (prefill) {
      // Other spans' rows have their outputs, but nobody has made copies of them.
      const CudaHalfRows half = std::exchange(params.out_half, {});
      if (CudaStatus failure = RunPrefillAttention(exec, batch, schedule, params)) return failure;
      params.out_half = half;
      return CopyToHalf(exec, batch, params);
    }
  }
  if (CudaStatus failure = RunGenericAttention(exec, batch, params)) return failure;
  return CopyToHalf(exec, batch, params);
}

}  // namespace cachalot
