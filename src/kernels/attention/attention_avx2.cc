// Attention, AVX2: which tiles of query rows there are, who computes
// them, and in what order results are merged.
//
// Bound: decode reads (k_dim + v_dim) values of cache per token and KV head and does 2 (k_dim + v_dim) flops
// per query head with them: memory for small groups, FMA from about 8 heads on. Prefill is FMA-bound.
//
// A tile's chunks of 256 tokens are computed each on its own and merged in order,
// always: so a long sequence's chunks can be shared among threads (when there are too
// few tiles to go round) without changing a bit.
#include <algorithm>

#include "kernels/attention/attention_codes_avx2.h"
#include "kernels/attention/attention_tile_avx2.h"

namespace cachalot {
namespace {

constexpr int kSlotsPerThread = 4;  // partial results that wait for their turn to be merged
constexpr int kTilesPerThread = 8;  // fewer tiles than this: share chunks
constexpr double kInlineNs = 6000;  // less work than this is not worth a parallel loop
constexpr double kTileNs = 500;     // of a tile, beside what grows with its tokens

int64_t Floats(int64_t count) {
  return Workspace::Padded(count * int64_t{sizeof(float)}) / int64_t{sizeof(float)};
}

int64_t PartialFloats(int64_t rows, int64_t v_dim) {
  return 2 * Floats(rows) + Floats(rows * v_dim);
}

template <typename Runner>
int64_t ScratchFloats(int64_t rows, int64_t k_dim) {
  return Floats(Runner::ScratchFloats(rows, k_dim));
}

PartialRows PartialAt(float* memory, int64_t rows) {
  return {memory, memory + Floats(rows), memory + 2 * Floats(rows)};
}

// How the rows of a span are cut into tiles, the same for each of its KV heads.
struct SpanTiles {
  int64_t num_rows = 0;  // q_len * heads per KV head
  int64_t num_tiles = 0;
  int64_t num_chunks = 0;  // of its longest row
};

class Plan {
 public:
  Plan(const ExecContext& ctx, const AttentionParams& params)
      : params_(params),
        heads_per_kv_(params.num_q_heads / params.kv.num_kv_heads),
        tile_rows_(MaxTileRows(params.kv.k_dim, params.kv.v_dim)) {
    // Tiles smaller than they may be, where that gives every thread some.
    const int64_t wanted = kTilesPerThread * ctx.pool->num_threads();
    int64_t total_rows = 0;
    for (const SeqSpan& span : params.spans) total_rows += int64_t{span.q_len} * params.num_q_heads;
    constexpr int64_t kLeastRows = 24;
    const int64_t share = (total_rows / wanted + kMaxGroupRows - 1) / kMaxGroupRows * kMaxGroupRows;
    tile_rows_ = std::min(tile_rows_, std::max(kLeastRows, share));
    for (const SeqSpan& span : params.spans) {
      const SpanTiles tiles = TilesOf(span);
      num_tasks_ += tiles.num_tiles * params.kv.num_kv_heads;
      num_parts_ += tiles.num_tiles * params.kv.num_kv_heads * tiles.num_chunks;
      const double rows = static_cast<double>(tiles.num_rows) * params.kv.num_kv_heads;
      const double visible = params.window > 0 ? std::min(params.window, span.kv_len) : span.kv_len;
      work_ns_ += rows * visible * (params.kv.k_dim + params.kv.v_dim) / 16.0 +
                  kTileNs * static_cast<double>(tiles.num_tiles * params.kv.num_kv_heads);
    }
  }

  SpanTiles TilesOf(const SeqSpan& span) const {
    SpanTiles tiles;
    tiles.num_rows = int64_t{span.q_len} * heads_per_kv_;
    tiles.num_tiles = (tiles.num_rows + tile_rows_ - 1) / tile_rows_;
    if (span.q_len == 0) return tiles;
    const KvRange range = VisibleRange(int64_t{span.kv_len} - span.q_len, params_.window);
    tiles.num_chunks = (span.kv_len - 1) / kChunkTokens - range.begin / kChunkTokens + 1;
    return tiles;
  }

  // Tile `tile` of a span and KV head. The last tiles see the most tokens and come first.
  void MakeTile(const SeqSpan& span, int64_t kv_head, int64_t tile, RowTile* out) const {
    const SpanTiles tiles = TilesOf(span);
    const int64_t at = tiles.num_tiles - 1 - tile;
    const int64_t begin = at * tile_rows_, end = std::min(begin + tile_rows_, tiles.num_rows);
    out->num_rows = static_cast<int>(end - begin);
    out->slot = span.slot;
    out->kv_head = kv_head;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / heads_per_kv_, head = kv_head * heads_per_kv_ + i % heads_per_kv_;
      out->q[i - begin] =
          params_.q + (span.q_begin + row) * params_.q_token_stride + head * params_.q_head_stride;
      out->out[i - begin] =
          params_.out + (span.q_begin + row) * params_.out_token_stride + head * params_.out_head_stride;
      out->position[i - begin] = int64_t{span.kv_len} - span.q_len + row;
    }
  }

  int64_t tile_rows() const { return tile_rows_; }
  int64_t num_tasks() const { return num_tasks_; }
  int64_t num_parts() const { return num_parts_; }
  double work_ns() const { return work_ns_; }

 private:
  const AttentionParams& params_;
  const int64_t heads_per_kv_;
  int64_t tile_rows_;
  int64_t num_tasks_ = 0;  // tiles
  int64_t num_parts_ = 0;  // chunks of tiles
  double work_ns_ = 0;     // on one thread, roughly
};

// The chunks that any row of a tile sees.
KvRange ChunksOf(const RowTile& tile, int32_t window) {
  const int64_t first = VisibleRange(tile.position[0], window).begin;
  return {first / kChunkTokens, tile.position[tile.num_rows - 1] / kChunkTokens + 1};
}

void StartRunning(const PartialRows& running, int num_rows) {
  std::fill_n(running.sum, num_rows, -1.0f);
}

// Walks the tasks (span, KV head, tile) in order. Each thread has its own, which begins again where a thread helps with
// earlier tasks than its own were.
struct alignas(64) TaskCursor {
  size_t span = 0;
  int64_t first_task = 0;  // of the span

  void MoveTo(const Plan& plan, const AttentionParams& params, int64_t task, RowTile* tile) {
    if (task < first_task) *this = {};
    for (;;) {
      const int64_t num_tiles = plan.TilesOf(params.spans[span]).num_tiles,
                    tasks = num_tiles * params.kv.num_kv_heads;
      if (task < first_task + tasks) {
        const int64_t local = task - first_task;
        return plan.MakeTile(params.spans[span], local / num_tiles, local % num_tiles, tile);
      }
      first_task += tasks;
      ++span;
    }
  }
};

// The widest inner loops that the instruction set and the shape allow; all of them give the same bits.
template <typename T>
const ChunkKernels<T>& KernelsFor(const ExecContext& ctx, const AttentionParams& params) {
  const bool wide = ctx.isa >= Isa::kAvx512 && params.kv.k_dim % 16 == 0 && params.kv.v_dim % 16 == 0;
  return wide ? ChunkKernelsAvx512(T{}) : kChunkKernelsAvx2<T>;
}

// One task per tile.
template <typename Runner>
void RunTiles(const ExecContext& ctx, const AttentionParams& params, const Plan& plan) {
  const int num_threads = ctx.pool->num_threads();
  const int64_t rows = plan.tile_rows();
  const int v_dim = params.kv.v_dim;
  const int64_t partial = PartialFloats(rows, v_dim);
  const int64_t per_thread = ScratchFloats<Runner>(rows, params.kv.k_dim) + 2 * partial;
  float* const memory = ctx.workspace->Take<float>(num_threads * per_thread);
  TaskCursor* const cursors = ctx.workspace->Take<TaskCursor>(num_threads);
  std::fill_n(cursors, num_threads, TaskCursor());

  const auto run = [&](int64_t task, int thread_idx) {
    float* const mine = memory + thread_idx * per_thread;
    const PartialRows next = PartialAt(mine, rows), running = PartialAt(mine + partial, rows);
    RowTile tile;
    cursors[thread_idx].MoveTo(plan, params, task, &tile);
    Runner runner(params, KernelsFor<typename Runner::Value>(ctx, params), tile, rows, mine + 2 * partial);
    const KvRange chunks = ChunksOf(tile, params.window);
    int64_t tokens = 0;
    tokens += runner.Run(chunks.begin * kChunkTokens, running);
    for (int64_t chunk = chunks.begin + 1; chunk < chunks.end; ++chunk) {
      tokens += runner.Run(chunk * kChunkTokens, next);
      MergePartial(next, tile.num_rows, v_dim, running);
    }
    Runner::Store(params, tile, running);
    CountKvBytes(ctx, params.kv, tokens);
  };
  if (plan.work_ns() < kInlineNs) {
    for (int64_t task = 0; task < plan.num_tasks(); ++task) run(task, 0);
  } else {
    ctx.pool->ParallelFor(plan.num_tasks(), run);
  }
}

// One chunk of a tile, for RunChunks.
struct Part {
  const SeqSpan* span;
  int64_t kv_head, tile, chunk;
  bool first, last;  // of its tile
};

// Calls fn(part) for all chunks of all tiles, in the order in which they are merged.
template <typename Fn>
void ForEachPart(const Plan& plan, const AttentionParams& params, Fn&& fn) {
  for (const SeqSpan& span : params.spans) {
    const int64_t num_tiles = plan.TilesOf(span).num_tiles;
    for (int64_t kv_head = 0; kv_head < params.kv.num_kv_heads; ++kv_head) {
      for (int64_t tile = 0; tile < num_tiles; ++tile) {
        RowTile rows;
        plan.MakeTile(span, kv_head, tile, &rows);
        const KvRange chunks = ChunksOf(rows, params.window);
        for (int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
          fn(Part{&span, kv_head, tile, chunk, chunk == chunks.begin, chunk + 1 == chunks.end});
        }
      }
    }
  }
}

// One task per chunk of a tile, in waves of as many as there are slots for partial results. Between the waves
// this thread merges them in order.
template <typename Runner>
void RunChunks(const ExecContext& ctx, const AttentionParams& params, const Plan& plan) {
  const int num_threads = ctx.pool->num_threads(), num_slots = kSlotsPerThread * num_threads;
  const int64_t rows = plan.tile_rows();
  const int v_dim = params.kv.v_dim;
  const int64_t partial = PartialFloats(rows, v_dim), per_thread = ScratchFloats<Runner>(rows, params.kv.k_dim);
  float* const scratch = ctx.workspace->Take<float>(num_threads * per_thread);
  float* const slots = ctx.workspace->Take<float>((num_slots + 1) * partial);
  Part* const parts = ctx.workspace->Take<Part>(num_slots);
  const PartialRows running = PartialAt(slots + num_slots * partial, rows);
  int held = 0;

  const auto run = [&](int64_t slot, int thread_idx) {
    const Part& part = parts[slot];
    RowTile tile;
    plan.MakeTile(*part.span, part.kv_head, part.tile, &tile);
    Runner runner(params, KernelsFor<typename Runner::Value>(ctx, params), tile, rows, scratch + thread_idx * per_thread);
    CountKvBytes(ctx, params.kv,
                 runner.Run(part.chunk * kChunkTokens, PartialAt(slots + slot * partial, rows)));
  };
  const auto finish_wave = [&] {
    ctx.pool->ParallelFor(held, run);
    for (int slot = 0; slot < held; ++slot) {
      const Part& part = parts[slot];
      RowTile tile;
      plan.MakeTile(*part.span, part.kv_head, part.tile, &tile);
      if (part.first) StartRunning(running, tile.num_rows);
      MergePartial(PartialAt(slots + slot * partial, rows), tile.num_rows, v_dim, running);
      if (part.last) Runner::Store(params, tile, running);
    }
    held = 0;
  };
  ForEachPart(plan, params, [&](const Part& part) {
    parts[held++] = part;
    if (held == num_slots) finish_wave();
  });
  finish_wave();
}

}  // namespace

bool AttentionAvx2Covers(const AttentionParams& params) {
  const KvPlanes* planes = params.kv.planes;
  return params.kv.k_dim % 8 == 0 && params.kv.v_dim % 8 == 0 && (planes == nullptr || planes->exact_dim % 8 == 0);
}

void AttentionAvx2(const ExecContext& ctx, const AttentionParams& params) {
  const WorkspaceScope scope(ctx.workspace);
  const Plan plan(ctx, params);
  if (plan.num_tasks() == 0) return;
  const int num_threads = ctx.pool->num_threads();
  const bool share_chunks = num_threads > 1 && plan.num_tasks() < kTilesPerThread * num_threads &&
                            plan.num_parts() > plan.num_tasks() && plan.work_ns() >= kInlineNs;
  const auto run = [&]<typename Runner>() {
    share_chunks ? RunChunks<Runner>(ctx, params, plan) : RunTiles<Runner>(ctx, params, plan);
  };
  if (params.kv.planes != nullptr) return run.template operator()<CodeChunkRunner>();
  WithKvType(params.kv.dtype, [&](auto type) { run.template operator()<ChunkRunner<decltype(type)>>(); });
}

int64_t AttentionAvx2WorkspaceBytes(int num_threads, int32_t k_dim, int32_t v_dim) {
  const int64_t rows = MaxTileRows(k_dim, v_dim);
  const int64_t partials = std::max<int64_t>(2 * num_threads, kSlotsPerThread * num_threads + 1);
  // Over a quantised cache; a plain one needs less.
  const int64_t floats = num_threads * ScratchFloats<CodeChunkRunner>(rows, k_dim) + partials * PartialFloats(rows, v_dim);
  const int64_t records = num_threads * std::max<int64_t>(sizeof(TaskCursor), kSlotsPerThread * sizeof(Part));
  return floats * int64_t{sizeof(float)} + Workspace::Padded(records);
}

}  // namespace cachalot
