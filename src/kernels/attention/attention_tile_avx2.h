// A tile of query rows against the cache: one chunk of tokens at a time, then the merge of the chunks'
// results. For attention_avx2.cc only.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/attention/attention_kernels_avx2.h"
#include "kernels/attention/attention_variants.h"
#include "kernels/common/kv_value.h"

namespace cachalot {

inline constexpr int kMaxTileRows = 72;  // a multiple of the row groups of both products (3 and 6)
// Up to this many rows the kernels read the cache's own type; more rows pay for converting a stage of it to
// F32 first.
inline constexpr int kMaxDirectRows = 8;
inline constexpr int kStageDims = 64;  // values are staged [kStageTokens, kStageDims]: half of a 32 KB L1
inline constexpr int kStageTokens = 64;

// Keys are staged whole rows at a time, about as many bytes.
inline int KeyStageTokens(int k_dim) {
  return std::clamp(kStageTokens * kStageDims / k_dim / 8 * 8, 8, kStageTokens);
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

// Unnormalised outputs: row r is sum[r] · softmax-weighted mean, relative to exp(maximum[r]). sum < 0: saw no
// token yet.
struct PartialRows {
  float* maximum;  // [rows]
  float* sum;      // [rows]
  float* out;      // [rows, v_dim]
};

struct TileScratch {
  float* scores;       // [rows, kScoreStride]
  float* key_stage;    // [KeyStageTokens, k_dim]
  float* value_stage;  // [kStageTokens, kStageDims]
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
    for (int t = begin & ~7; t < begin; ++t) key[t] = key[begin];
    for (int t = end; t < ((end + 7) & ~7); ++t) key[t] = key[end - 1];
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

// Splits rows into the fewest groups of at most `most`, as even as can be: fn(first_row, num_rows).
template <typename Fn>
static inline void ForEachGroup(int num_rows, int most, Fn&& fn) {
  const int groups = (num_rows + most - 1) / most;
  for (int g = 0, first = 0; g < groups; ++g) {
    const int rows = (num_rows - first) / (groups - g);
    fn(first, rows);
    first += rows;
  }
}

template <typename T>
static inline void ConvertRow(const T* src, int count, float* dst) {
  for (int i = 0; i < count; i += 8) _mm256_storeu_ps(dst + i, LoadF32(src + i));
}

template <typename T>
class ChunkRunner {
 public:
  ChunkRunner(const AttentionParams& params, const RowTile& tile, TileScratch scratch)
      : params_(params),
        tile_(tile),
        scratch_(scratch),
        staged_(!std::is_same_v<T, float> && tile.num_rows > kMaxDirectRows),
        // With F32 data three rows times four tokens need the fewest loads; where each load also converts,
        // more rows share it.
        score_rows_(staged_ || tile.num_rows > kMaxDirectRows ? 3 : kMaxGroupRows) {}

  // Computes the chunk's partial result of all rows; returns the number of tokens read.
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
      SoftmaxChunk(scratch_.scores + r * kScoreStride, ranges.begin[r], ranges.end[r], &partial.maximum[r],
                   &partial.sum[r]);
      std::fill_n(partial.out + int64_t{r} * v_dim, v_dim, 0.0f);
    }
    for (int t = ranges.first / kStageTokens * kStageTokens; t < ranges.last; t += kStageTokens) {
      for (int d = 0; d < v_dim; d += kStageDims) {
        WeighStage(ranges, std::max(t, ranges.first), std::min(t + kStageTokens, ranges.last), d,
                   std::min(kStageDims, v_dim - d), partial.out + d);
      }
    }
    return std::max(ranges.last - ranges.first, 0);
  }

 private:
  void Scores(const ChunkRanges& ranges) {
    const int k_dim = params_.kv.k_dim, stage = staged_ ? KeyStageTokens(k_dim) : kChunkTokens;
    for (int t = ranges.first / stage * stage; t < ranges.last; t += stage) {
      const float* staged_keys[kStageTokens];
      if (staged_) {
        const int end = std::min(stage, ((ranges.last + 7) & ~7) - t);
        for (int i = std::max(0, (ranges.first & ~7) - t); i < end; ++i) {
          float* row = scratch_.key_stage + int64_t{i} * k_dim;
          ConvertRow(pointers_.key[t + i], k_dim, row);
          staged_keys[i] = row;
        }
      }
      ForEachGroup(tile_.num_rows, score_rows_, [&](int row, int rows) {
        int begin = kChunkTokens, end = 0;
        for (int r = row; r < row + rows; ++r) {
          if (ranges.begin[r] >= ranges.end[r]) continue;
          begin = std::min<int>(begin, ranges.begin[r]);
          end = std::max<int>(end, ranges.end[r]);
        }
        begin = std::max(begin, t) & ~7;
        end = (std::min(end, t + stage) + 7) & ~7;
        if (begin >= end) return;
        float* scores = scratch_.scores + row * kScoreStride;
        if (staged_) {
          ScoreGroup<float>(rows, tile_.q + row, staged_keys, k_dim, params_.scale, begin - t, end - t,
                            scores + t);
        } else {
          ScoreGroup<T>(rows, tile_.q + row, pointers_.key, k_dim, params_.scale, begin, end, scores);
        }
      });
    }
  }

  // Adds tokens [begin, end) of at most one stage to `dims` values of all rows' sums.
  void WeighStage(const ChunkRanges& ranges, int begin, int end, int d, int dims, float* out) {
    if (staged_) {
      const float* staged_values[kStageTokens];
      for (int t = begin; t < end; ++t) {
        float* row = scratch_.value_stage + (t - begin) * kStageDims;
        ConvertRow(pointers_.value[t] + d, dims, row);
        staged_values[t - begin] = row;
      }
      WeighAllRows<float>(ranges, begin, end, staged_values, begin, 0, dims, out);
    } else {
      WeighAllRows<T>(ranges, begin, end, pointers_.value, 0, d, dims, out);
    }
  }

  // values[t - base] + at: token t's. Tokens that only some rows of a group see are added row by row: a
  // weight of zero would not do, since zero times a value that the row must not see can be NaN.
  template <typename V>
  void WeighAllRows(const ChunkRanges& ranges, int stage_begin, int stage_end, const V* const* values,
                    int base, int64_t at, int dims, float* out) {
    const int64_t stride = params_.kv.v_dim;
    ForEachGroup(tile_.num_rows, kMaxGroupRows, [&](int row, int rows) {
      int all_begin = stage_begin, all_end = stage_end;
      for (int r = row; r < row + rows; ++r) {
        all_begin = std::max<int>(all_begin, ranges.begin[r]);
        all_end = std::min<int>(all_end, ranges.end[r]);
      }
      const auto weigh = [&](int first_row, int num_rows, int begin, int end) {
        if (begin >= end) return;
        WeighGroup<V>(num_rows, scratch_.scores + first_row * kScoreStride + base, values, at, dims,
                      begin - base, end - base, out + first_row * stride, stride);
      };
      if (all_begin >= all_end) all_begin = all_end = stage_end;
      for (int r = row; r < row + rows; ++r) {
        weigh(r, 1, std::max<int>(stage_begin, ranges.begin[r]), std::min<int>(all_begin, ranges.end[r]));
      }
      weigh(row, rows, all_begin, all_end);
      for (int r = row; r < row + rows; ++r) weigh(r, 1, all_end, std::min<int>(stage_end, ranges.end[r]));
    });
  }

  const AttentionParams& params_;
  const RowTile& tile_;
  const TileScratch scratch_;
  const bool staged_;
  const int score_rows_;
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
    const auto factor = [&](float m) { return m == maximum ? 1.0f : std::exp(m - maximum); };
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

static inline void StoreRows(const RowTile& tile, int v_dim, const PartialRows& running) {
  for (int r = 0; r < tile.num_rows; ++r) {
    const __m256 inverse = _mm256_set1_ps(1.0f / running.sum[r]);
    const float* sum = running.out + int64_t{r} * v_dim;
    for (int d = 0; d < v_dim; d += 8) {
      _mm256_storeu_ps(tile.out[r] + d, _mm256_mul_ps(_mm256_loadu_ps(sum + d), inverse));
    }
  }
}

}  // namespace cachalot
