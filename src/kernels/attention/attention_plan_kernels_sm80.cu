// The kernels that make the schedule of a step's attention from its spans: one block, once a step.
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/warp.cuh"
#include "kernels/attention/attention_split.cuh"
#include "kernels/attention/attention_wide.cuh"

namespace cachalot {
namespace {

constexpr int kThreads = 1024;

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
__device__ __forceinline__ int NumSplits(const AttentionSchedule& s, const SpanShape& shape, int split, int align) {
  if (!shape.split_class || shape.num_tiles == 0) return 0;
  const int num = (shape.end - shape.begin / align * align + split - 1) / split;
  return shape.num_tiles > s.most_cut_tiles ? min(num, 1) : num;
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
    const int num_splits = NumSplits(s, shape, split, kSplitAlign);
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
    int num_splits = NumSplits(s, shape, split, align);
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

// At most kFewSpans spans, all of them the split kernels' (decode): what PlanKernel makes, by a few warps that meet nowhere. Lane i has span i;
// each warp finds all counts by itself, judging candidate splits lane by lane, and writes its part of the items. A step waits for this kernel,
// and code that runs once is fetched once: it is short, and divides little.
constexpr int kFewSpans = 32;
constexpr int kFewThreads = 256;

__device__ __forceinline__ int ChooseSplitByLanes(const SpanShape& mine, int num_spans, const AttentionSchedule& s) {
  const long long total = WarpSum(static_cast<long long>(mine.num_tiles) * (mine.end - mine.begin));
  const long long share = (total + s.blocks - 1) / s.blocks;
  const int which = static_cast<int>(threadIdx.x) % 32;
  const long long wanted = which < 16 ? share * (16 + which) / 16 : share * which / 32;
  const int split = max(s.least_split, RoundUp(wanted, kSplitAlign));
  int items = 0, longest = 0;
#pragma unroll 1
  for (int i = 0; i < num_spans; ++i) {
    SpanShape shape = {true, __shfl_sync(kAllLanes, mine.num_tiles, i), __shfl_sync(kAllLanes, mine.begin, i), __shfl_sync(kAllLanes, mine.end, i)};
    const int num_splits = NumSplits(s, shape, split, kSplitAlign);
    if (num_splits == 0) continue;
    items += num_splits * shape.num_tiles;
    longest = max(longest, num_splits > 1 ? split : shape.end - shape.begin);
  }
  const unsigned long long rounds = (items + s.blocks - 1) / s.blocks;
  unsigned long long best = (rounds * (longest + s.item_cost)) << 5 | static_cast<unsigned>(which);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) best = min(best, __shfl_xor_sync(kAllLanes, best, offset));
  return __shfl_sync(kAllLanes, split, static_cast<int>(best & 31));
}

struct LaneScan {
  int before, total;
  __device__ explicit LaneScan(int value) {
    int upto = value;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int lower = __shfl_up_sync(kAllLanes, upto, offset);
      if (static_cast<int>(threadIdx.x) % 32 >= offset) upto += lower;
    }
    before = upto - value;
    total = __shfl_sync(kAllLanes, upto, 31);
  }
};

struct FewTask {
  const SeqSpan* spans;
  int num_spans;
  AttentionSchedule s;
  WideSchedule w;
};
struct FewTasks {
  FewTask of[2];  // a block each
};

__global__ __launch_bounds__(kFewThreads) void PlanFewKernel(const __grid_constant__ FewTasks tasks, bool deterministic, bool read_early) {
  // As above: only kernels that read the schedule behind their wait may start before this one has ended.
  if (!read_early) LetNextKernelStart();
  WaitForEarlierKernels();
  const FewTask& task = tasks.of[blockIdx.x];
  const SeqSpan* spans = task.spans;
  const int num_spans = task.num_spans;
  const AttentionSchedule& s = task.s;
  const WideSchedule& w = task.w;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const SeqSpan mine = lane < num_spans ? spans[lane] : SeqSpan{};
  const SpanShape shape = ShapeOf(s, mine);
  const int split = deterministic ? kFixedSplit : ChooseSplitByLanes(shape, num_spans, s);
  const int align = deterministic ? kFixedSplit : kSplitAlign;
  int num_splits = NumSplits(s, shape, split, align);
  const int wanted = num_splits > 1 ? num_splits * shape.num_tiles : 0;
  const LaneScan partials(wanted);
  if (partials.before + wanted > s.max_partials) num_splits = min(num_splits, 1);
  const LaneScan items(max(num_splits, 1) * shape.num_tiles), cuts(num_splits > 1 ? shape.num_tiles : 0);
  LaneScan units(0);
  int stream_blocks = 0;
  if (s.stream_blocks > 0) {
    units = LaneScan(StreamUnits(s, mine));
    const int parts = __reduce_add_sync(kAllLanes, shape.num_tiles * s.num_kv_heads);
    stream_blocks = units.total > 0 ? StreamBlocks(s, units.total, parts) : 0;
  }
  const SpanSplits entry = {num_splits, num_splits > 1 ? partials.before : -1, items.before, shape.num_tiles, 0, 0, cuts.before, units.before};
  if (warp == 0) {
    if (lane < num_spans) s.spans[lane] = entry, w.first[lane] = {0, 0};
    if (lane == 0) {
      *s.counts = {min(items.total, s.max_items), 0, split, cuts.total, units.total, stream_blocks};
      *w.counts = {0, 0, 0};
    }
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < s.max_partials * s.num_kv_heads; i += kFewThreads) s.arrivals[i] = 0;

  // As many warps a span as there are to spare.
  const int ways = num_spans > 4 ? 1 : num_spans > 2 ? 2 : num_spans > 1 ? 4 : 8;
#pragma unroll 1
  for (int i = warp / ways; i < num_spans; i += kFewThreads / 32 / ways) {
    const auto of_span = [&](int value) { return __shfl_sync(kAllLanes, value, i); };
    const SeqSpan span = {of_span(mine.slot), of_span(mine.q_begin), of_span(mine.q_len), of_span(mine.kv_len)};
    const int tiles = of_span(shape.num_tiles), splits = max(of_span(num_splits), 1), first_item = of_span(items.before);
    const int first_partial = of_span(partials.before), first_cut = of_span(cuts.before), first_unit = of_span(units.before);
    const int units_end = first_unit + (s.stream_blocks > 0 ? StreamUnits(s, span) : 0), begin = of_span(shape.begin) / align * align;
    const int first = warp % ways * 32 + lane, step = ways * 32;
#pragma unroll 1
    for (int j = first; j < tiles * splits; j += step) {
      const int at = j / tiles, tile = j - at * tiles;
      if (first_item + j >= s.max_items) break;
      SplitItem item{i, tile, 0, 0, -1};
      if (splits == 1) {
        const TileRange range = RangeOfTile(span, tile, TileRowsOf(s, span), s.group, s.window);
        item.begin = range.begin / align * align;
        item.end = range.end;
      } else {
        item.begin = begin + at * split;
        item.end = min(item.begin + split, span.kv_len);
        item.partial = first_partial + tile * splits + at;
      }
      s.items[first_item + j] = item;
    }
#pragma unroll 1
    for (int j = first; splits > 1 && j < tiles; j += step) s.cut_tiles[first_cut + j] = {i, j, first_partial + j * splits, splits};
    if (units_end > first_unit) {
      const auto first_block = [&](int unit) { return static_cast<int>((int64_t{unit} * stream_blocks + units.total - 1) / units.total); };
      const int end = first_block(units_end);
#pragma unroll 1
      for (int b = first_block(first_unit) + first; b < end; b += step) {
        s.shares[b] = ShareAt(s, span, i, ShareBegin(b, units.total, stream_blocks) - first_unit);
      }
    }
  }
  __threadfence();
}

}  // namespace

namespace {

bool IsFew(const CudaBatch& batch, const AttentionSchedule& s) {
  return batch.num_spans <= kFewSpans && int64_t{batch.max_q_len} * s.group <= s.max_split_rows;
}
FewTask TaskOf(const CudaBatch& batch, const AttentionSchedule& s, const WideSchedule& w) { return {batch.spans, batch.num_spans, s, w}; }

}  // namespace

void LaunchPlan(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& s, const WideSchedule& w) {
  if (IsFew(batch, s)) {
    const FewTask task = TaskOf(batch, s, w);
    LaunchOverlapped(&PlanFewKernel, 1, kFewThreads, 0, exec.stream, FewTasks{{task, task}}, exec.deterministic, s.stream_blocks > 0);
  } else {
    LaunchOverlapped(&PlanKernel, 1, kThreads, 0, exec.stream, batch.spans, batch.num_spans, s, w, exec.deterministic);
  }
}

void LaunchPlans(const CudaExec& exec, const PlanTask& first, const PlanTask& second) {
  if (!IsFew(*first.batch, first.schedule) || !IsFew(*second.batch, second.schedule)) {
    LaunchPlan(exec, *first.batch, first.schedule, first.wide);
    LaunchPlan(exec, *second.batch, second.schedule, second.wide);
    return;
  }
  const FewTasks tasks = {{TaskOf(*first.batch, first.schedule, first.wide), TaskOf(*second.batch, second.schedule, second.wide)}};
  LaunchOverlapped(&PlanFewKernel, 2, kFewThreads, 0, exec.stream, tasks, exec.deterministic,
                   first.schedule.stream_blocks > 0 || second.schedule.stream_blocks > 0);
}

}  // namespace cachalot
