// What the split attention kernels share: the schedule in device memory and the arithmetic of merging partial softmaxes.
//
// Query rows of one KV head are numbered token by token, a group's heads side by side: row r of a span is token r / group,
// head r % group of the group. A tile is TileRowsOf(span) such rows. An item is a tile and a range of cache positions; a span
// whose range is cut has one partial result per (tile, split), which are folded in the order of the splits: by the block that
// finishes the last of them (decode) or by a kernel of its own (MLA, whose partials are large).
//
// Same bits whatever the batch: ranges are cut at multiples of kFixedSplit, each split is a softmax of its own, and splits
// are folded one after the other, by the same function, after the fact or within an item (fold mode).
#pragma once

#include <math_constants.h>

#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/common/cuda_batch.h"

namespace cachalot {

inline constexpr int kFixedSplit = 512;       // deterministic mode
inline constexpr int kSplitAlign = 64;        // ranges begin at multiples of this
inline constexpr int kMostCutTiles = 8;       // spans with more tiles than this have enough of them: they are not cut
inline constexpr int kMostCutMlaTiles = 24;   // likewise: 128 heads of four tokens are 16 tiles of kMlaPreciseRows, on 132 SMs
inline constexpr int kPreciseTokens = 512;    // a tile that sees no more keeps the rests (attention_tile.cuh)
inline constexpr int kPrefillTileRows = 64;
inline constexpr int kMlaTileRows = 64;
inline constexpr int kMlaPreciseRows = 32;    // with their rests as many as a tile of kMlaTileRows
inline constexpr int kMlaStreamRows = 16;     // heads, at most, of the streaming MLA kernel
inline constexpr int kMaxDecodeRows = 64;     // spans with more rows than this go to the prefill kernel, where there is one
inline constexpr float kLog2E = 1.4426950408889634f;

struct SplitItem {
  int32_t span;
  int32_t tile;
  int32_t begin;    // cache positions
  int32_t end;
  int32_t partial;  // -1: the item is all of its tile, the result goes straight to the output
};

struct SpanSplits {
  int32_t num_splits;     // of every tile; 0 and 1: nothing to combine
  int32_t first_partial;  // partial of (tile, split) = first_partial + tile * num_splits + split
  int32_t first_item;
  int32_t num_tiles;      // 0: the span is not the split kernels'
  int32_t first_prefill;
  int32_t num_prefill_tiles;
  int32_t first_cut;      // of its tiles among cut_tiles
  int32_t first_unit;     // of its share of the streaming kernel's work
};

// A tile whose range is cut: its splits are partials first_partial .. first_partial + num_splits - 1.
struct CutTile {
  int32_t span;
  int32_t tile;
  int32_t first_partial;
  int32_t num_splits;
};

struct PrefillItem {
  int32_t span;
  int32_t tile;
};

struct ScheduleCounts {
  int32_t num_items;
  int32_t num_prefill_items;
  int32_t split_tokens;
  int32_t num_cut_tiles;
  int32_t stream_units;   // attention_stream.cuh: of all blocks
  int32_t stream_blocks;  // among which they are shared
};

// Where a block's share begins (attention_stream.cuh).
struct StreamShare {
  SeqSpan seq;
  int32_t span;
  int32_t tile;
  int32_t kv_head;
  int32_t unit;  // of the tile's and head's
};

// Pointers into a plan's memory.
struct AttentionSchedule {
  ScheduleCounts* counts;
  SpanSplits* spans;            // [num_spans]
  SplitItem* items;             // [max_items]
  PrefillItem* prefill;         // [max_prefill]
  CutTile* cut_tiles;           // [max_partials / 2]: at least two partials each
  float* partial_out;           // [max_partials, num_kv_heads, partial_rows, v_dim], not divided by the sum
  float2* partial_stats;        // [max_partials, num_kv_heads, partial_rows]: largest (in units of log2), sum
  StreamShare* shares;          // [stream_blocks]
  float* fold_memory;           // MLA's fold mode: [num_sms, 32, v_dim]
  int32_t* arrivals;            // [max_partials, num_kv_heads]: splits of a tile that are done, at its first partial; 0 between ops
  float* log_sums;              // [num_rows, query heads]: largest + log2 sum of what lies behind the sinks (attention_sinks_sm80.cu)
  int32_t max_items;
  int32_t max_prefill;
  int32_t max_partials;
  int32_t rows_per_tile;
  int32_t precise_rows;         // of a tile whose span has few rows or sees few tokens; as many or fewer
  int32_t partial_rows;         // at least the rows of a tile that exist
  int32_t group;                // query heads of a KV head
  int32_t num_kv_heads;
  int32_t window;
  int32_t max_split_rows;       // spans with more rows than this are left to the prefill kernel
  int32_t blocks;               // that run at a time, for one KV head
  int32_t least_split;          // shorter ones cost more in merging than they gain
  int32_t item_cost;            // beside its tokens, in tokens
  int32_t most_cut_tiles;       // of a span that is cut
  int32_t stream_blocks;        // at most; 0: no streaming kernel
  int32_t stream_blocks_per_sm;
  int32_t sinks;                // tokens from 0 on that lie elsewhere: not attended, and log_sums is written where there are any
  int64_t bytes;
};

AttentionSchedule MakeAttentionSchedule(const CudaAttentionShape& shape, const CudaBatch& batch, int32_t num_sms,
                                        bool deterministic, std::byte* memory);

// The kernels, each in its file; they cover what the functions beside them say.
bool DecodeCovers(const AttentionParams& params);
CudaStatus RunDecodeAttention(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                              const AttentionParams& params);
bool StreamCovers(const CudaBatch& batch, const AttentionSchedule& schedule);
CudaStatus RunStreamAttention(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                              const AttentionParams& params);
bool MlaCovers(const AttentionParams& params);
CudaStatus RunMlaAttention(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                           const AttentionParams& params);
// MLA with one token a sequence and few heads, of what MlaCovers.
bool MlaStreamCovers(const CudaBatch& batch, const AttentionSchedule& schedule);
CudaStatus RunMlaStream(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params);
bool PrefillCovers(const AttentionParams& params);
CudaStatus RunPrefillAttention(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                               const AttentionParams& params);
CudaStatus RunCombine(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule,
                      const AttentionParams& params);
CudaStatus RunGenericAttention(const CudaExec& exec, const CudaBatch& batch, const AttentionParams& params);

// A 16-bit cache that can be copied 16 bytes at a time, 16 tokens of which always lie in one block.
inline bool HasVectorKv(const PagedKv& kv) {
  const auto whole = [](int64_t values) { return values % 8 == 0; };
  return (kv.dtype == DType::kF16 || kv.dtype == DType::kBF16) && kv.block_tokens % 16 == 0 &&
         kv.block_bytes % 16 == 0 && whole(kv.k_head_stride) && whole(kv.v_offset) && whole(kv.v_head_stride) &&
         whole(kv.v_token_stride) && reinterpret_cast<uintptr_t>(kv.data) % 16 == 0;
}

#ifdef __CUDACC__

// Rows of this span's tiles.
__device__ __forceinline__ int TileRowsOf(const AttentionSchedule& s, const SeqSpan& span) {
  const bool few_rows = int64_t{span.q_len} * s.group <= s.precise_rows;
  const int first = span.kv_len - span.q_len;
  const int begin = s.window > 0 && first >= s.window ? first - s.window + 1 : 0;
  return few_rows || span.kv_len - begin <= kPreciseTokens ? s.precise_rows : s.rows_per_tile;
}

// Row r of a span as the kernels see it.
struct TileRow {
  int32_t row;       // of the batch
  int32_t head;      // query head
  int32_t position;  // of the token; -1: no such row
};
__device__ __forceinline__ TileRow RowOfTile(const SeqSpan& span, int r, int group, int kv_head) {
  const int token = r / group;
  if (token >= span.q_len) return {0, 0, -1};
  return {span.q_begin + token, kv_head * group + r % group, span.kv_len - span.q_len + token};
}

// First cache position that the token at `position` sees.
__device__ __forceinline__ int VisibleBegin(int position, int window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

// The positions [begin, end) that any row of a tile sees.
struct TileRange {
  int begin;
  int end;
};
__device__ __forceinline__ TileRange RangeOfTile(const SeqSpan& span, int tile, int rows_per_tile, int group,
                                                 int window) {
  const int first = tile * rows_per_tile / group;
  const int last = min((tile * rows_per_tile + rows_per_tile - 1) / group, span.q_len - 1);
  const int base = span.kv_len - span.q_len;
  return {VisibleBegin(base + first, window), base + last + 1};
}

// The streaming kernel's unit of work: kSplitAlign tokens from a multiple of that on.
__device__ __forceinline__ int UnitsOf(const TileRange& range) {
  return (range.end - range.begin / kSplitAlign * kSplitAlign + kSplitAlign - 1) / kSplitAlign;
}
// Of what is mostly small: a division of 64 bits is a hundred instructions.
__device__ __forceinline__ int DivideShares(int64_t a, int b) {
  return static_cast<int>(a >> 32 == 0 ? static_cast<uint32_t>(a) / static_cast<uint32_t>(b) : a / b);
}
// Block b's share begins here.
__device__ __forceinline__ int ShareBegin(int b, int units, int blocks) { return DivideShares(int64_t{b} * units, blocks); }
// The block whose share has this unit.
__device__ __forceinline__ int BlockOfUnit(int unit, int units, int blocks) {
  return DivideShares((int64_t{unit} + 1) * blocks - 1, units);
}
// Tiles of a span that the split kernels take.
__device__ __forceinline__ int SplitTilesOf(const AttentionSchedule& s, const SeqSpan& span) {
  const int64_t rows = int64_t{span.q_len} * s.group;
  if (span.q_len <= 0 || rows > s.max_split_rows) return 0;
  const int tile_rows = TileRowsOf(s, span);
  return static_cast<int>((rows + tile_rows - 1) / tile_rows);
}

// Takes the partial softmax (largest m_i, sum l_i) into (m, l); sums of values become a * sum + b * sum_i.
__device__ __forceinline__ void FoldStats(float* m, float* l, float m_i, float l_i, float* a, float* b) {
  if (m_i == -CUDART_INF_F) {  // nothing visible in it
    *a = 1.0f;
    *b = 0.0f;
    return;
  }
  const float largest = fmaxf(*m, m_i);
  *a = exp2f(*m - largest);
  *b = exp2f(m_i - largest);
  *l = __fmaf_rn(*l, *a, __fmul_rn(l_i, *b));
  *m = largest;
}
__device__ __forceinline__ float FoldValue(float sum, float a, float sum_i, float b) {
  return __fmaf_rn(sum, a, __fmul_rn(sum_i, b));
}

// A softmax of four values, as far as it has been folded.
struct Folded {
  float m;
  float l;
  float4 sum;

  __device__ __forceinline__ void Add(float m_i, float l_i, const float4& sum_i) {
    float a, b;
    FoldStats(&m, &l, m_i, l_i, &a, &b);
    const bool counts = b != 0.0f || a != 1.0f;  // else what it holds may be anything
    sum.x = counts ? FoldValue(sum.x, a, sum_i.x, b) : sum.x;
    sum.y = counts ? FoldValue(sum.y, a, sum_i.y, b) : sum.y;
    sum.z = counts ? FoldValue(sum.z, a, sum_i.z, b) : sum.z;
    sum.w = counts ? FoldValue(sum.w, a, sum_i.w, b) : sum.w;
  }
  __device__ __forceinline__ void Write(float* out) const {
    out[0] = __fdiv_rn(sum.x, l);
    out[1] = __fdiv_rn(sum.y, l);
    out[2] = __fdiv_rn(sum.z, l);
    out[3] = __fdiv_rn(sum.w, l);
  }
};

// What a row's softmax over all but the sinks came to, for them to be added.
__device__ __forceinline__ void WriteLogSum(const AttentionSchedule& s, int num_q_heads, const TileRow& to, float m, float l) {
  if (s.sinks > 0) s.log_sums[int64_t{to.row} * num_q_heads + to.head] = l > 0 ? m + log2f(l) : m;
}

// Values d .. d + 3 of row r of a tile over its splits, partials `first` .. `first` + num_splits - 1.
__device__ __forceinline__ Folded FoldSplits(const AttentionSchedule& s, int64_t first, int num_splits, int kv_head,
                                             int r, int d, int v_dim) {
  Folded result = {-CUDART_INF_F, 0, {0, 0, 0, 0}};
#pragma unroll 8
  for (int split = 0; split < num_splits; ++split) {
    const int64_t at = ((first + split) * s.num_kv_heads + kv_head) * s.partial_rows + r;
    // Through L2: other blocks of the same kernel may have written them.
    const float2 stats = __ldcg(s.partial_stats + at);
    const float4 part = __ldcg(reinterpret_cast<const float4*>(s.partial_out + at * v_dim + d));
    result.Add(stats.x, stats.y, part);
  }
  return result;
}

#endif

}  // namespace cachalot
