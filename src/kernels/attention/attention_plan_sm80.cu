// The schedule of a step's attention, made on the device by one block from the spans; and the choice of kernels.
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

constexpr int kThreads = 1024;
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
  const int64_t rows = int64_t{span.q_len} * s.group, tile_rows = TileRowsOf(s, span);
  return {rows <= s.max_split_rows, static_cast<int>((rows + tile_rows - 1) / tile_rows),
          VisibleBegin(span.kv_len - span.q_len, s.window), span.kv_len};
}

// Of all KV heads; 0 where the streaming kernel has nothing to do.
__device__ int StreamUnits(const AttentionSchedule& s, const SeqSpan& span) {
  if (s.stream_blocks == 0) return 0;
  int units = 0;
  for (int tile = 0, tiles = SplitTilesOf(s, span); tile < tiles; ++tile) {
    units += UnitsOf(RangeOfTile(span, tile, TileRowsOf(s, span), s.group, s.window));
  }
  return units * s.num_kv_heads;
}

// Where block b's share begins, `unit` of the span's units on.
__device__ StreamShare ShareAt(const AttentionSchedule& s, const SeqSpan& seq, int span, int unit) {
  int tile = 0, units = 1;
  while (true) {
    units = UnitsOf(RangeOfTile(seq, tile, TileRowsOf(s, seq), s.group, s.window));
    if (unit < units * s.num_kv_heads) break;
    unit -= units * s.num_kv_heads;
    ++tile;
  }
  return {seq, span, tile, unit / units, unit % units};
}

// Among how many blocks the streaming kernel's work is shared. Memory is the bound, not SMs: a few of them may stay idle, if the
// others then begin and end where tiles do (when sequences are about as long) and have less to fold.
__device__ int StreamBlocks(const AttentionSchedule& s, int units, int parts) {
  const int least_units = s.least_split / kSplitAlign, most = min(s.stream_blocks, (units + least_units - 1) / least_units);
  if (most < s.stream_blocks) return most;
  for (int blocks = most; blocks > most - most / 16; --blocks) {
    if (parts % blocks == 0 || blocks % parts == 0) return blocks;
  }
  return most;
}

// Splits of a span's tiles; ranges are cut at multiples of `split` from a multiple of `align` on.
__device__ __forceinline__ int NumSplits(const SpanShape& shape, int split, int align) {
  if (!shape.split_class || shape.num_tiles == 0) return 0;
  const int num = (shape.end - shape.begin / align * align + split - 1) / split;
  return shape.num_tiles > kMostCutTiles ? min(num, 1) : num;
}

// The split with which the blocks are done first, when all take about as long for a token: each warp judges one, between
// half and twice an even share.
__device__ int ChooseSplit(const SeqSpan* spans, int num_spans, const AttentionSchedule& s, long long total_tokens,
                           unsigned long long* scratch) {
  const long long share = (total_tokens + s.blocks - 1) / s.blocks;
  const auto candidate = [&](int which) {
    const long long split = which < 16 ? share * (16 + which) / 16 : share * which / 32;
    return max(s.least_split, RoundUp(split, kSplitAlign));
  };
  const int warp = threadIdx.x / 32, split = candidate(warp);
  int items = 0, longest = 0;
  for (int i = threadIdx.x % 32; i < num_spans; i += 32) {
    const SpanShape shape = ShapeOf(s, spans[i]);
    const int num_splits = NumSplits(shape, split, kSplitAlign);
    if (num_splits == 0) continue;
    items += num_splits * shape.num_tiles;
    longest = max(longest, num_splits > 1 ? split : shape.end - shape.begin);
  }
  items = __reduce_add_sync(kAllLanes, items);
  longest = __reduce_max_sync(kAllLanes, longest);
  const unsigned long long rounds = (items + s.blocks - 1) / s.blocks;
  if (threadIdx.x % 32 == 0) scratch[warp] = (rounds * (longest + s.item_cost)) << 5 | warp;
  __syncthreads();
  unsigned long long best = scratch[0];
  for (int w = 1; w < kThreads / 32; ++w) best = min(best, scratch[w]);
  return candidate(static_cast<int>(best & 31));
}

__global__ __launch_bounds__(kThreads) void PlanKernel(const SeqSpan* spans, int num_spans, AttentionSchedule s, WideSchedule w,
                                                        bool deterministic) {
  __shared__ int scratch[32];
  __shared__ long long wide_scratch[32];
  __shared__ unsigned long long split_scratch[32];
  // None behind it starts before it has ended: the streaming kernels read the schedule before they wait for those in front of them.
  WaitForEarlierKernels();
  // How much there is: tokens of all tiles (of one KV head).
  long long mine = 0;
  for (int i = threadIdx.x; i < num_spans; i += kThreads) {
    const SpanShape shape = ShapeOf(s, spans[i]);
    if (shape.split_class) mine += static_cast<long long>(shape.num_tiles) * (shape.end - shape.begin);
  }
  const long long total_tokens = BlockSum(mine, wide_scratch);
  const int split = deterministic ? kFixedSplit : ChooseSplit(spans, num_spans, s, total_tokens, split_scratch);
  const int align = deterministic ? kFixedSplit : kSplitAlign;

  int items = 0, partials = 0, prefills = 0, narrows = 0, wides = 0, cuts = 0, units = 0, parts = 0;
  for (int base = 0; base < num_spans; base += kThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
    const SpanShape shape = i < num_spans ? ShapeOf(s, spans[i]) : SpanShape{true, 0, 0, 0};
    const bool split_class = shape.split_class && shape.num_tiles > 0;
    int num_splits = NumSplits(shape, split, align);
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
    const WideTiles wide_tiles = shape.split_class ? WideTiles{0, 0, 0} : WideTilesOf(s, spans[i]);
    const int first_narrow = narrows + BlockExclusiveScan<kThreads>(wide_tiles.narrow, &total, scratch);
    narrows += total;
    const int first_wide = wides + BlockExclusiveScan<kThreads>(wide_tiles.wide, &total, scratch);
    wides += total;
    const int first_cut = cuts + BlockExclusiveScan<kThreads>(num_splits > 1 ? shape.num_tiles : 0, &total, scratch);
    cuts += total;
    const int first_unit = units + BlockExclusiveScan<kThreads>(i < num_spans ? StreamUnits(s, spans[i]) : 0, &total, scratch);
    units += total;
    BlockExclusiveScan<kThreads>(split_class ? shape.num_tiles * s.num_kv_heads : 0, &total, scratch);
    parts += total;
    if (i < num_spans) {
      s.spans[i] = {num_splits, num_splits > 1 ? first_partial : -1, first_item, split_class ? shape.num_tiles : 0,
                    first_prefill, tiles, first_cut, first_unit};
      w.first[i] = {first_narrow, first_wide};
    }
  }
  const int stream_blocks = units > 0 ? StreamBlocks(s, units, parts) : 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    *s.counts = {min(items, s.max_items), min(prefills, s.max_prefill), split, cuts, units, stream_blocks};
    *w.counts = {min(narrows, w.max_narrow), min(wides, w.max_wide), 0};
  }
  for (int i = threadIdx.x; i < s.max_partials * s.num_kv_heads; i += kThreads) s.arrivals[i] = 0;

  for (int i = threadIdx.x / 32; i < num_spans; i += kThreads / 32) {  // a warp writes a span's items
    const SpanSplits entry = s.spans[i];
    const SeqSpan span = spans[i];
    const int num_splits = max(entry.num_splits, 1);
    for (int j = threadIdx.x % 32; j < entry.num_tiles * num_splits; j += 32) {
      // The tiles of one range side by side: blocks that run at a time read the same tokens.
      const int tile = j % entry.num_tiles, at = j / entry.num_tiles;
      if (entry.first_item + j >= s.max_items) break;
      SplitItem item{i, tile, 0, 0, -1};
      if (num_splits == 1) {
        const TileRange range = RangeOfTile(span, tile, TileRowsOf(s, span), s.group, s.window);
        item.begin = range.begin / align * align;
        item.end = range.end;
      } else {
        const int begin = VisibleBegin(span.kv_len - span.q_len, s.window) / align * align;
        item.begin = begin + at * split;
        item.end = min(item.begin + split, span.kv_len);
        item.partial = entry.first_partial + tile * num_splits + at;
      }
      s.items[entry.first_item + j] = item;
    }
    for (int j = threadIdx.x % 32; entry.num_splits > 1 && j < entry.num_tiles; j += 32) {
      s.cut_tiles[entry.first_cut + j] = {i, j, entry.first_partial + j * entry.num_splits, entry.num_splits};
    }
    if (const int mine = StreamUnits(s, span); mine > 0) {
      const auto first_block = [&](int unit) { return static_cast<int>((int64_t{unit} * stream_blocks + units - 1) / units); };
      const int end = first_block(entry.first_unit + mine);
      for (int b = first_block(entry.first_unit) + static_cast<int>(threadIdx.x) % 32; b < end; b += 32) {
        s.shares[b] = ShareAt(s, span, i, ShareBegin(b, units, stream_blocks) - entry.first_unit);
      }
    }
    // The last tiles see most and come first.
    for (int j = threadIdx.x % 32; j < entry.num_prefill_tiles; j += 32) {
      if (entry.first_prefill + j >= s.max_prefill) break;
      s.prefill[entry.first_prefill + j] = {i, entry.num_prefill_tiles - 1 - j};
    }
    if (entry.num_prefill_tiles > 0) {
      const WideTiles tiles = WideTilesOf(s, span);
      const int2 first = w.first[i];
      for (int j = threadIdx.x % 32; j < tiles.narrow && first.x + j < w.max_narrow; j += 32) {
        w.narrow[first.x + j] = {i, tiles.narrow - 1 - j};
      }
      for (int j = threadIdx.x % 32; j < tiles.wide && first.y + j < w.max_wide; j += 32) w.wide[first.y + j] = {i, tiles.all_wide - 1 - j};
    }
  }
  // The streaming kernel reads the schedule as soon as this kernel has ended, before it waits for the ones in between.
  __threadfence();
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

CudaStatus CudaPlanAttention(const CudaExec& exec, const CudaBatch& batch, const CudaAttentionPlan& plan) {
  const CudaAttentionShape& shape = plan.shape;
  if (shape.num_kv_heads <= 0 || shape.num_q_heads <= 0 || shape.num_q_heads % shape.num_kv_heads != 0) {
    return CudaFail(CudaFault::kInvalid, "attention_plan: %d query heads over %d KV heads", shape.num_q_heads,
                    shape.num_kv_heads);
  }
  if (batch.num_rows == 0 || batch.num_spans == 0) return nullptr;
  const AttentionSchedule schedule =
      MakeAttentionSchedule(shape, batch, exec.num_sms, exec.deterministic, plan.memory);
  const WideSchedule wide = MakeWideSchedule(schedule, batch);
  if (wide.end > plan.memory_bytes) {
    return CudaFail(CudaFault::kInvalid, "attention_plan: %lld bytes, %lld needed for %d rows, %d spans",
                    static_cast<long long>(plan.memory_bytes), static_cast<long long>(wide.end), batch.num_rows,
                    batch.num_spans);
  }
  LaunchOverlapped(&PlanKernel, 1, kThreads, 0, exec.stream, batch.spans, batch.num_spans, schedule, wide, exec.deterministic);
  return CudaLaunched("attention_plan of %d spans", batch.num_spans);
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

// Over a quantised cache. In exact and in deterministic arithmetic by the kernel that takes every shape.
CudaStatus AttendCodes(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params) {
  const CodePlanes planes = CodePlanesOf(*params.kv.planes);
  const bool fast = exec.math == CudaMath::kFast && !exec.deterministic;
  if (fast && CodesCover(params, planes, schedule)) {
    if (CudaStatus failure = RunCodesDecode(exec, batch, schedule, params, planes)) return failure;
    const bool all = int64_t{batch.max_q_len} * schedule.group <= schedule.max_split_rows;
    if (all) return nullptr;
    if (CudaStatus failure = RunCodesPrefill(exec, batch, schedule, params, planes)) return failure;
    return CopyToHalf(exec, batch, params);
  }
  if (fast && MlaCodesCover(params, planes)) {
    const auto run = FewMlaCodesCover(batch, schedule, planes) ? &RunFewMlaCodes : &RunMlaCodes;
    if (CudaStatus failure = run(exec, batch, schedule, params, planes)) return failure;
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
  if (kv.sinks != nullptr) return CudaFail(CudaFault::kUnsupported, "attention: no sinks beside a quantised cache");
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
