// A tile of query rows against the cache: one chunk of tokens at a time, then the merge of the chunks'
// results. For attention_avx2.cc only.
#pragma once

#include <cmath>
#include <numbers>

#include "kernels/attention/attention_kernels_avx2.h"
#include "kernels/attention/attention_variants.h"
#include "kernels/common/kv_value.h"

namespace cachalot {

inline constexpr int kMaxTileRows = 72;  // a multiple of the kernels' row groups

// The second product runs over blocks of this many values of this many tokens: in F16, 8 KB that stay in L1
// while all rows of the tile pass.
inline constexpr int kStageDims = 64;
inline constexpr int kStageTokens = 64;

// As many tokens' keys as stay in L1 while the rows pass. A few rows pass once or twice only: all tokens at
// once.
inline int KeyStageTokens(int num_rows, int k_dim) {
  if (num_rows <= 2 * kMaxGroupRows) return kChunkTokens;
  return std::clamp(8192 / k_dim / 8 * 8, 8, kChunkTokens);
}

// The rows that a task may hold so that its queries, scores and sums stay in half of a 512 KB L2.
inline int MaxTileRows(int k_dim, int v_dim) {
  const int row_bytes = 4 * (k_dim + kScoreStride + 2 * v_dim);
  return std::clamp(256 * 1024 / row_bytes / 6 * 6, 6, kMaxTileRows);
}

// Query rows that share a sequence and a KV head, in the order of position, then head.
struct RowTile {
  int num_rows = 0;
  int64_t slot = 0;
  int64_t kv_head = 0;
  const float* q[kMaxTileRows];
  float* out[kMaxTileRows];
  int64_t position[kMaxTileRows];
};

// Unnormalised outputs: row r is sum[r] · softmax-weighted mean, relative
// to 2^maximum[r]. sum < 0: saw no token yet.
struct PartialRows {
  float* maximum;  // [rows]
  float* sum;      // [rows]
  float* out;      // [rows, v_dim]
};

// Addresses of a chunk's tokens, so that neither kernel knows of blocks. Entries around the visible tokens,
// up to multiples of 8, repeat the nearest visible one: they are read, never used.
template <typename T>
struct ChunkPointers {
  const T* key[kChunkTokens];
  const T* value[kChunkTokens];

  void Fill(const PagedKv& kv, int64_t slot, int64_t head, int64_t chunk_begin, int begin, int end) {
    const T* block = nullptr;
    int64_t in_block = 0;
    for (int t = begin; t < end; ++t, ++in_block) {
      if (block == nullptr || in_block == kv.block_tokens) {
        block = reinterpret_cast<const T*>(kv.Block(slot, chunk_begin + t));
        in_block = (chunk_begin + t) % kv.block_tokens;
      }
      key[t] = block + head * kv.k_head_stride + in_block * kv.k_dim;
      value[t] = block + kv.v_offset + head * kv.v_head_stride + in_block * kv.v_token_stride;
    }
    const auto repeat = [&](int from, int to, int visible) {
      std::fill(key + from, key + to, key[visible]);
      std::fill(value + from, value + to, value[visible]);
    };
    repeat(begin & ~7, begin, begin);
    repeat(end, (end + 7) & ~7, end - 1);
  }
};

// The visible tokens of a tile's rows within a chunk, as offsets from its start; empty ranges have begin >=
// end.
struct ChunkRanges {
  int16_t begin[kMaxTileRows];
  int16_t end[kMaxTileRows];
  int first = kChunkTokens;  // over all rows
  int last = 0;

  ChunkRanges(const RowTile& tile, int32_t window, int64_t chunk_begin) {
    for (int r = 0; r < tile.num_rows; ++r) {
      const KvRange range = VisibleRange(tile.position[r], window);
      begin[r] = static_cast<int16_t>(std::clamp<int64_t>(range.begin - chunk_begin, 0, kChunkTokens));
      end[r] = static_cast<int16_t>(std::clamp<int64_t>(range.end - chunk_begin, 0, kChunkTokens));
      if (begin[r] >= end[r]) continue;
      first = std::min<int>(first, begin[r]);
      last = std::max<int>(last, end[r]);
    }
  }
};

// Splits rows into the fewest groups of at most `most`, full ones first, but the last two alike (7 = 4 + 3,
// not 6 + 1): fn(first_row, num_rows).
template <typename Fn>
static inline void ForEachGroup(int num_rows, int most, Fn&& fn) {
  for (int first = 0; first < num_rows;) {
    const int left = num_rows - first;
    const int rows = left >= 2 * most ? most : left > most ? (left + 1) / 2 : left;
    fn(first, rows);
    first += rows;
  }
}

static inline void StoreRows(const RowTile& tile, int v_dim, const PartialRows& running) {
  for (int r = 0; r < tile.num_rows; ++r) {
    const __m256 inverse = _mm256_set1_ps(1.0f / running.sum[r]);
    const float* sum = running.out + int64_t{r} * v_dim;
    for (int d = 0; d < v_dim; d += 8) {
      _mm256_storeu_ps(tile.out[r] + d, _mm256_mul_ps(_mm256_loadu_ps(sum + d), inverse));
    }
  }
}

// Adds tokens [begin, end) to `dims` values, from `at` on, of all rows' sums. Tokens that only some rows of a group see
// are added row by row: a weight of zero would not do, since zero times a value that the row must not see can be NaN.
template <typename T>
static void WeighStage(const ChunkKernels<T>& kernels, int num_rows, const ChunkRanges& ranges, const float* scores,
                       const T* const* values, int begin, int end, int64_t at, int dims, float* out, int64_t stride) {
  ForEachGroup(num_rows, kMaxGroupRows, [&](int row, int rows) {
    int all_begin = begin, all_end = end;
    for (int r = row; r < row + rows; ++r) {
      all_begin = std::max<int>(all_begin, ranges.begin[r]);
      all_end = std::min<int>(all_end, ranges.end[r]);
    }
    if (all_begin >= all_end) all_begin = all_end = end;
    const auto weigh = [&](int first_row, int count, int from, int to) {
      if (from >= to) return;
      kernels.weigh(count, scores + first_row * kScoreStride, values, at, dims, from, to, out + first_row * stride, stride);
    };
    for (int r = row; r < row + rows; ++r) {
      weigh(r, 1, std::max<int>(begin, ranges.begin[r]), std::min<int>(all_begin, ranges.end[r]));
    }
    weigh(row, rows, all_begin, all_end);
    for (int r = row; r < row + rows; ++r) weigh(r, 1, all_end, std::min<int>(end, ranges.end[r]));
  });
}

// Computes one chunk for all rows of a tile. Keys and values are read in the cache's own type, where they
// lie: each value that is loaded and converted serves up to six rows. (Converting a stage of them to F32
// first was measured: no faster for 72 rows, 20 % slower for 16.)
template <typename T>
class ChunkRunner {
 public:
  using Value = T;
  static int64_t ScratchFloats(int64_t rows, int64_t /*k_dim*/) { return rows * kScoreStride; }

  ChunkRunner(const AttentionParams& params, const ChunkKernels<T>& kernels, const RowTile& tile, int64_t /*max_rows*/,
              float* scratch)
      : params_(params),
        kernels_(kernels),
        score_scale_(static_cast<float>(params.scale * std::numbers::log2e)),
        tile_(tile),
        scores_(scratch) {}

  static void Store(const AttentionParams& params, const RowTile& tile, const PartialRows& running) {
    StoreRows(tile, params.kv.v_dim, running);
  }

  // Leaves the chunk's partial result in `partial`; returns the number of tokens read.
  int Run(int64_t chunk_begin, const PartialRows& partial) {
    const ChunkRanges ranges(tile_, params_.window, chunk_begin);
    const int v_dim = params_.kv.v_dim;
    if (ranges.first < ranges.last) {
      pointers_.Fill(params_.kv, tile_.slot, tile_.kv_head, chunk_begin, ranges.first, ranges.last);
      Scores(ranges);
    }
    for (int r = 0; r < tile_.num_rows; ++r) {
      partial.sum[r] = -1.0f;
      if (ranges.begin[r] >= ranges.end[r]) continue;
      kernels_.softmax(scores_ + r * kScoreStride, ranges.begin[r], ranges.end[r], &partial.maximum[r],
                       &partial.sum[r]);
      std::fill_n(partial.out + int64_t{r} * v_dim, v_dim, 0.0f);
    }
    for (int t = ranges.first / kStageTokens * kStageTokens; t < ranges.last; t += kStageTokens) {
      for (int d = 0; d < v_dim; d += kStageDims) {
        WeighStage<T>(kernels_, tile_.num_rows, ranges, scores_, pointers_.value, std::max(t, ranges.first),
                      std::min(t + kStageTokens, ranges.last), d, std::min(kStageDims, v_dim - d), partial.out + d, v_dim);
      }
    }
    return std::max(ranges.last - ranges.first, 0);
  }

 private:
  void Scores(const ChunkRanges& ranges) {
    const int stage = KeyStageTokens(tile_.num_rows, params_.kv.k_dim);
    const int group = tile_.num_rows <= 2 * kMaxGroupRows ? kMaxGroupRows : kernels_.score_rows;
    Ahead<T> values_ahead;
    if (!ValueLiesInKey(params_.kv)) values_ahead = {pointers_.value, params_.kv.v_dim * int64_t{sizeof(T)}};
    for (int t = ranges.first / stage * stage; t < ranges.last; t += stage) {
      ForEachGroup(tile_.num_rows, group, [&](int row, int rows) {
        int begin = kChunkTokens, end = 0;
        for (int r = row; r < row + rows; ++r) {
          if (ranges.begin[r] >= ranges.end[r]) continue;
          begin = std::min<int>(begin, ranges.begin[r]);
          end = std::max<int>(end, ranges.end[r]);
        }
        begin = std::max(begin, t) & ~7;
        end = (std::min(end, t + stage) + 7) & ~7;
        if (begin >= end) return;
        kernels_.scores(rows, tile_.q + row, pointers_.key, params_.kv.k_dim, score_scale_, begin, end,
                        scores_ + row * kScoreStride, row == 0 ? values_ahead : Ahead<T>{});
      });
    }
  }

  const AttentionParams& params_;
  const ChunkKernels<T>& kernels_;
  const float score_scale_;  // scores are exponents to base 2
  const RowTile& tile_;
  float* const scores_;  // [rows, kScoreStride]
  ChunkPointers<T> pointers_;
};

// Adds the next chunk's partial result to the running one.
static inline void MergePartial(const PartialRows& next, int num_rows, int v_dim,
                                const PartialRows& running) {
  for (int r = 0; r < num_rows; ++r) {
    if (next.sum[r] < 0) continue;
    float* out = running.out + int64_t{r} * v_dim;
    const float* add = next.out + int64_t{r} * v_dim;
    if (running.sum[r] < 0) {
      running.maximum[r] = next.maximum[r];
      running.sum[r] = next.sum[r];
      std::copy_n(add, v_dim, out);
      continue;
    }
    const float maximum = std::max(running.maximum[r], next.maximum[r]);
    const auto factor = [&](float m) { return m == maximum ? 1.0f : std::exp2(m - maximum); };
    const float keep = factor(running.maximum[r]), gain = factor(next.maximum[r]);
    running.maximum[r] = maximum;
    running.sum[r] = running.sum[r] * keep + next.sum[r] * gain;
    const __m256 a = _mm256_set1_ps(keep), b = _mm256_set1_ps(gain);
    for (int d = 0; d < v_dim; d += 8) {
      const __m256 kept = _mm256_mul_ps(_mm256_loadu_ps(out + d), a);
      _mm256_storeu_ps(out + d, _mm256_fmadd_ps(_mm256_loadu_ps(add + d), b, kept));
    }
  }
}

}  // namespace cachalot
