// The schedule of a step's attention, made on the device by one block from the spans; and the choice of kernels.
#include "device/cuda/cuda_error.h"
#include "device/cuda/cuda_ops.h"
#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_split.cuh"

namespace cachalot {
namespace {

constexpr int kThreads = 1024;

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

__device__ __forceinline__ int RoundUp(int64_t value, int unit) {
  return static_cast<int>((value + unit - 1) / unit) * unit;
}

struct SpanShape {
  bool split_class;
  int num_tiles;
  int begin;  // of the whole span's visible range
  int end;
};
__device__ SpanShape ShapeOf(const AttentionSchedule& s, const SeqSpan& span) {
  if (span.q_len <= 0) return {true, 0, 0, 0};
  const int64_t rows = int64_t{span.q_len} * s.group;
  return {rows <= s.max_split_rows, static_cast<int>((rows + s.rows_per_tile - 1) / s.rows_per_tile),
          VisibleBegin(span.kv_len - span.q_len, s.window), span.kv_len};
}

__global__ void PlanKernel(const SeqSpan* spans, int num_spans, AttentionSchedule s, bool deterministic) {
  __shared__ int scratch[32];
  __shared__ long long wide_scratch[32];
  // How much there is: tokens of all tiles (of one KV head).
  long long mine = 0;
  for (int i = threadIdx.x; i < num_spans; i += kThreads) {
    const SpanShape shape = ShapeOf(s, spans[i]);
    if (shape.split_class) mine += static_cast<long long>(shape.num_tiles) * (shape.end - shape.begin);
  }
  const long long total_tokens = BlockSum(mine, wide_scratch);
  int split = kFixedSplit;
  if (!deterministic) {
    split = max(kLeastSplit, RoundUp((total_tokens + s.wanted_items - 1) / s.wanted_items, kSplitAlign));
  }
  const int align = deterministic ? kFixedSplit : kSplitAlign;

  int items = 0, partials = 0, prefills = 0;
  for (int base = 0; base < num_spans; base += kThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
    const SpanShape shape = i < num_spans ? ShapeOf(s, spans[i]) : SpanShape{true, 0, 0, 0};
    const bool split_class = shape.split_class && shape.num_tiles > 0;
    const int begin = shape.begin / align * align;
    int num_splits = split_class ? (shape.end - begin + split - 1) / split : 0;
    // A long prompt's tiles are many already: they are not cut.
    if (int64_t{shape.num_tiles} * s.rows_per_tile > kMaxDecodeRows + s.rows_per_tile) num_splits = min(num_splits, 1);
    int total = 0;
    const int wanted = num_splits > 1 ? num_splits * shape.num_tiles : 0;
    const int first_partial = partials + BlockExclusiveScan<kThreads>(wanted, &total, scratch);
    partials += total;
    // Where the memory ends, spans stay whole: in deterministic mode the bits are the same.
    if (first_partial + wanted > s.max_partials) num_splits = min(num_splits, 1);
    const int count = split_class ? max(num_splits, 1) * shape.num_tiles : 0;
    const int first_item = items + BlockExclusiveScan<kThreads>(count, &total, scratch);
    items += total;
    const int tiles = shape.split_class ? 0 : (spans[i].q_len * s.group + kPrefillTileRows - 1) / kPrefillTileRows;
    const int first_prefill = prefills + BlockExclusiveScan<kThreads>(tiles, &total, scratch);
    prefills += total;
    if (i < num_spans) {
      s.spans[i] = {num_splits, num_splits > 1 ? first_partial : -1, first_item, split_class ? shape.num_tiles : 0,
                    first_prefill, tiles};
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) *s.counts = {min(items, s.max_items), min(prefills, s.max_prefill), split};
  for (int i = threadIdx.x; i < s.max_partials * s.num_kv_heads; i += kThreads) s.arrivals[i] = 0;

  for (int i = threadIdx.x / 32; i < num_spans; i += kThreads / 32) {  // a warp writes a span's items
    const SpanSplits entry = s.spans[i];
    const SeqSpan span = spans[i];
    const int num_splits = max(entry.num_splits, 1);
    for (int j = threadIdx.x % 32; j < entry.num_tiles * num_splits; j += 32) {
      const int tile = j / num_splits, at = j % num_splits;
      if (entry.first_item + j >= s.max_items) break;
      SplitItem item{i, tile, 0, 0, -1};
      if (num_splits == 1) {
        const TileRange range = RangeOfTile(span, tile, s.rows_per_tile, s.group, s.window);
        item.begin = range.begin / align * align;
        item.end = range.end;
      } else {
        const int begin = VisibleBegin(span.kv_len - span.q_len, s.window) / align * align;
        item.begin = begin + at * split;
        item.end = min(item.begin + split, span.kv_len);
        item.partial = entry.first_partial + j;
      }
      s.items[entry.first_item + j] = item;
    }
    // The last tiles see most and come first.
    for (int j = threadIdx.x % 32; j < entry.num_prefill_tiles; j += 32) {
      if (entry.first_prefill + j >= s.max_prefill) break;
      s.prefill[entry.first_prefill + j] = {i, entry.num_prefill_tiles - 1 - j};
    }
  }
}

constexpr int kCombineThreads = 128;

// One thread four values of one row and head: folds the splits in their order.
__global__ void CombineKernel(AttentionParams p, const SeqSpan* spans, const int32_t* row_spans, AttentionSchedule s) {
  const int row = static_cast<int>(blockIdx.x), v_dim = p.kv.v_dim, threads_a_head = v_dim / 4;
  const int i = row_spans[row];
  if (i < 0) return;
  const SpanSplits entry = s.spans[i];
  if (entry.num_splits <= 1) return;
  const int head = static_cast<int>(blockIdx.y) * (kCombineThreads / threads_a_head) +
                   static_cast<int>(threadIdx.x) / threads_a_head;
  if (head >= p.num_q_heads) return;
  const int d = static_cast<int>(threadIdx.x) % threads_a_head * 4;
  const int kv_head = head / s.group;
  const int r = (row - spans[i].q_begin) * s.group + head % s.group;
  const int64_t first = int64_t{entry.first_partial} + r / s.rows_per_tile * entry.num_splits;
  const float4 value = FoldSplits(s, first, entry.num_splits, kv_head, r % s.rows_per_tile, d, v_dim);
  float* out = p.out + row * p.out_token_stride + head * p.out_head_stride + d;
  out[0] = value.x;
  out[1] = value.y;
  out[2] = value.z;
  out[3] = value.w;
}

}  // namespace

AttentionSchedule MakeAttentionSchedule(const CudaAttentionShape& shape, const CudaBatch& batch, int32_t num_sms,
                                        bool deterministic, std::byte* memory) {
  AttentionSchedule s = {};
  s.num_kv_heads = shape.num_kv_heads;
  s.group = shape.num_q_heads / shape.num_kv_heads;
  s.window = shape.window;
  const bool mla = IsMla(shape);
  s.rows_per_tile = 16;
  if (mla) {
    const int64_t most_rows = int64_t{s.group} * batch.max_q_len;
    s.rows_per_tile = most_rows <= 16 ? 16 : most_rows <= 32 || deterministic ? 32 : 64;
  }
  s.max_split_rows = INT32_MAX;
  if (!deterministic && HasPrefill(shape)) s.max_split_rows = HasDecode(shape) ? kMaxDecodeRows : 0;
  const int blocks_per_sm = mla || shape.k_dim > 128 ? 1 : 2;
  s.wanted_items = 2 * blocks_per_sm * num_sms / shape.num_kv_heads;
  if (s.wanted_items < 1) s.wanted_items = 1;

  // Bounds on what the spans can ask for; memory for the least tile, so that it does not depend on the mode.
  const int64_t rows = int64_t{batch.num_rows} * s.group;
  s.max_partials = 2 * s.wanted_items > 512 ? 2 * s.wanted_items : 512;
  s.max_items = static_cast<int32_t>(rows / 16 + batch.num_spans + s.max_partials);
  s.max_prefill = static_cast<int32_t>(rows / kPrefillTileRows + batch.num_spans);
  const int64_t partial_rows = int64_t{s.max_partials} * shape.num_kv_heads * (mla ? 64 : 16);
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
  s.arrivals = reinterpret_cast<int32_t*>(take(int64_t{s.max_partials} * shape.num_kv_heads * int64_t{sizeof(int32_t)}));
  s.partial_stats = reinterpret_cast<float2*>(take(partial_rows * int64_t{sizeof(float2)}));
  s.partial_out = reinterpret_cast<float*>(take(partial_rows * shape.v_dim * int64_t{sizeof(float)}));
  s.bytes = at;
  return s;
}

CudaStatus RunCombine(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                      const AttentionParams& params) {
  const int heads_a_block = kCombineThreads / (params.kv.v_dim / 4);
  const dim3 grid(static_cast<unsigned>(batch.num_rows),
                  static_cast<unsigned>((params.num_q_heads + heads_a_block - 1) / heads_a_block));
  CombineKernel<<<grid, kCombineThreads, 0, static_cast<cudaStream_t>(exec.stream)>>>(params, batch.spans,
                                                                                      batch.row_spans, schedule);
  return CudaLaunched("attention combine of %d rows, %d heads of %d", batch.num_rows, params.num_q_heads,
                      params.kv.v_dim);
}

int64_t CudaAttentionPlanBytes(const CudaAttentionShape& shape, const CudaBatch& batch, int32_t num_sms) {
  return MakeAttentionSchedule(shape, batch, num_sms, false, nullptr).bytes;
}

CudaStatus CudaPlanAttention(const CudaExec& exec, const CudaBatch& batch, const CudaAttentionPlan& plan) {
  const CudaAttentionShape& shape = plan.shape;
  if (shape.num_kv_heads <= 0 || shape.num_q_heads <= 0 || shape.num_q_heads % shape.num_kv_heads != 0) {
    return CudaFail(CudaFault::kInvalid, "attention_plan: %d query heads over %d KV heads", shape.num_q_heads,
                    shape.num_kv_heads);
  }
  if (batch.num_rows == 0 || batch.num_spans == 0) return nullptr;
  const AttentionSchedule schedule =
      MakeAttentionSchedule(shape, batch, exec.num_sms, exec.deterministic, plan.memory);
  if (schedule.bytes > plan.memory_bytes) {
    return CudaFail(CudaFault::kInvalid, "attention_plan: %lld bytes, %lld needed for %d rows, %d spans",
                    static_cast<long long>(plan.memory_bytes), static_cast<long long>(schedule.bytes), batch.num_rows,
                    batch.num_spans);
  }
  PlanKernel<<<1, kThreads, 0, static_cast<cudaStream_t>(exec.stream)>>>(batch.spans, batch.num_spans, schedule,
                                                                        exec.deterministic);
  return CudaLaunched("attention_plan of %d spans", batch.num_spans);
}

CudaStatus CudaAttention(const CudaExec& exec, const CudaBatch& batch, const CudaAttentionPlan& plan,
                         const AttentionParams& params) {
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
  if (exec.math == CudaMath::kFast) {
    if (MlaCovers(params)) {
      if (CudaStatus failure = RunMlaAttention(exec, batch, schedule, params)) return failure;
      return RunCombine(exec, batch, schedule, params);
    }
    const bool decode = DecodeCovers(params), prefill = !exec.deterministic && PrefillCovers(params);
    if (decode) {
      if (CudaStatus failure = RunDecodeAttention(exec, batch, schedule, params)) return failure;
      const bool all = int64_t{batch.max_q_len} * schedule.group <= schedule.max_split_rows;
      return all ? nullptr : RunPrefillAttention(exec, batch, schedule, params);
    }
    if (prefill) return RunPrefillAttention(exec, batch, schedule, params);
  }
  return RunGenericAttention(exec, batch, params);
}

}  // namespace cachalot
