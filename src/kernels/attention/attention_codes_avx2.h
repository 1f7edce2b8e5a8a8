// Attention over a quantised cache, AVX2: the counterpart of attention_tile_avx2.h's ChunkRunner. For attention_avx2.cc
// only.
//
// Few rows (decode) take key codes from the planes into registers; many rows (prefill) share a stage of bytes in L1; the
// same bits either way (attention_codes_kernels_avx2.h). E4M3 keys, and all values, are decoded into a stage of floats,
// where the plain kernels take over: a product of a code and its scale is exact in F32. Sinks go that way too.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

#include "kernels/attention/attention_codes_kernels_avx2.h"
#include "kernels/attention/attention_query.h"
#include "kernels/attention/attention_tile_avx2.h"
#include "kernels/common/kv_region.h"

namespace cachalot {

inline constexpr int kKeyStageBytes = 16 * 1024;  // half of L1
inline constexpr int kAheadTokens = 32;

// The scratch of one tile.
struct CodeScratch {
  float* scores;       // [rows, kScoreStride]
  float* queries;      // [rows, padded + exact], F32, padding zero
  float* sink_queries; // the same for sinks, if there are any
  int8_t* codes;       // [rows, padded]
  int32_t* starts;     // [rows, groups, 8]
  float* key_stage;    // kKeyStageBytes, or eight tokens if that is more
  float* value_stage;  // [kStageTokens, kStageDims]

  static int64_t Stride(int64_t k_dim) { return (k_dim + 2 * kKvUnit) / kKvUnit * kKvUnit; }  // >= padded + exact
  static int64_t KeyStageFloats(int64_t k_dim) { return std::max<int64_t>(kKeyStageBytes / 4, 8 * Stride(k_dim)); }
  // All sizes from the rows and k_dim alone.
  static int64_t Floats(int64_t rows, int64_t k_dim) {
    return rows * (kScoreStride + 2 * Stride(k_dim) + Stride(k_dim) / 4 + Stride(k_dim) / 4) + KeyStageFloats(k_dim) +
           kStageTokens * kStageDims;
  }
  CodeScratch(float* memory, int64_t rows, int64_t k_dim) {
    queries = memory;
    sink_queries = queries + rows * Stride(k_dim);
    codes = reinterpret_cast<int8_t*>(sink_queries + rows * Stride(k_dim));
    starts = reinterpret_cast<int32_t*>(codes + rows * Stride(k_dim));
    key_stage = reinterpret_cast<float*>(starts) + rows * Stride(k_dim) / 4;
    value_stage = key_stage + KeyStageFloats(k_dim);
    scores = value_stage + kStageTokens * kStageDims;
  }
};

class CodeChunkRunner {
 public:
  using Value = float;  // that the plain kernels work on
  static int64_t ScratchFloats(int64_t rows, int64_t k_dim) { return CodeScratch::Floats(rows, k_dim); }

  CodeChunkRunner(const AttentionParams& params, const ChunkKernels<float>& kernels, const RowTile& tile, int64_t max_rows,
                  float* scratch)
      : params_(params),
        kernels_(kernels),
        planes_(*params.kv.planes),
        score_scale_(static_cast<float>(params.scale * std::numbers::log2e)),
        tile_(tile),
        scratch_(scratch, max_rows, params.kv.k_dim) {
    for (int r = 0; r < tile.num_rows; ++r) StoreQuery(r);
  }

  int Run(int64_t chunk_begin, const PartialRows& partial) {
    const ChunkRanges ranges(tile_, params_.window, chunk_begin);
    const int v_dim = params_.kv.v_dim;
    const int split = static_cast<int>(std::clamp<int64_t>(params_.kv.sink_tokens - chunk_begin, 0, kChunkTokens));
    const TokenRange sinks = {ranges.first, std::min(ranges.last, split)}, coded = {std::max(ranges.first, split), ranges.last};
    if (sinks.begin < sinks.end) {
      FindRows(*params_.kv.sinks, chunk_begin, sinks);
      FloatScores(ranges, sinks, params_.kv.sinks->planes->key.coding, scratch_.sink_queries);
    }
    if (coded.begin < coded.end) {
      FindRows(params_.kv, chunk_begin, coded);
      if (IntegerKeys(planes_)) {
        WithKvCode(planes_.key.coding.code, [&](auto code) {
          if constexpr (code != KvCode::kE4M3 && code != KvCode::kBF16) CodeScores<code>(ranges, coded);
        });
      } else {
        FloatScores(ranges, coded, planes_.key.coding, scratch_.queries);
      }
    }
    for (int r = 0; r < tile_.num_rows; ++r) {
      partial.sum[r] = -1.0f;
      if (ranges.begin[r] >= ranges.end[r]) continue;
      kernels_.softmax(scratch_.scores + r * kScoreStride, ranges.begin[r], ranges.end[r], &partial.maximum[r], &partial.sum[r]);
      std::fill_n(partial.out + int64_t{r} * v_dim, v_dim, 0.0f);
    }
    if (sinks.begin < sinks.end) WeighValues(ranges, sinks, params_.kv.sinks->planes->value.coding, partial.out);
    if (coded.begin < coded.end) WeighValues(ranges, coded, planes_.value.coding, partial.out);
    return std::max(ranges.last - ranges.first, 0);
  }

  static void Store(const AttentionParams& params, const RowTile& tile, const PartialRows& running) {
    const KvPlanes& planes = *params.kv.planes;
    StoreRows(tile, params.kv.v_dim, running);
    if (!planes.value_in_key) return;
    const float* mean = KvKeyMean(params.kv, tile.kv_head);
    const __m256 factor = _mm256_set1_ps(1.0f / static_cast<float>(planes.rotation));
    for (int r = 0; r < tile.num_rows; ++r) {
      float* out = tile.out[r];
      RotateKvAvx2(out, params.kv.v_dim, planes.rotation);
      for (int d = 0; d < params.kv.v_dim; d += 8) {
        const __m256 turned = _mm256_mul_ps(_mm256_loadu_ps(out + d), factor);
        _mm256_storeu_ps(out + d, mean == nullptr ? turned : _mm256_add_ps(turned, _mm256_loadu_ps(mean + d)));
      }
    }
  }

 private:
  struct TokenRange {
    int begin, end;
  };

  void WeighValues(const ChunkRanges& ranges, TokenRange tokens, const KvCoding& coding, float* out) {
    const CodeRows& values = planes_.value_in_key ? keys_ : values_;
    const int v_dim = params_.kv.v_dim;
    for (int t = tokens.begin / kStageTokens * kStageTokens; t < tokens.end; t += kStageTokens) {
      const int begin = std::max(t, tokens.begin), end = std::min(t + kStageTokens, tokens.end);
      for (int d = 0; d < v_dim; d += kStageDims) {
        const int dims = std::min(kStageDims, v_dim - d);
        const float* stage[kChunkTokens];
        StageValues(values, coding, begin, end, d, dims, stage);
        WeighStage<float>(kernels_, tile_.num_rows, ranges, scratch_.scores, stage, begin, end, 0, dims, out + d, v_dim);
      }
    }
  }

  // What sinks are multiplied with: the query as the codes meet it. factor: of `query`.
  void StoreSinkQuery(int r, const float* query, float factor) {
    const int padded = planes_.key.coding.padded();
    float* const out = scratch_.sink_queries + r * CodeScratch::Stride(params_.kv.k_dim);
    for (int i = 0; i < padded; ++i) out[i] = query[i] * factor;
    std::copy_n(tile_.q[r] + planes_.key.coding.dim, planes_.exact_dim, out + padded);
  }

  void StoreQuery(int r) {
    const KvCoding& coding = planes_.key.coding;
    const int dim = coding.dim, padded = coding.padded(), exact_dim = planes_.exact_dim;
    float* const query = scratch_.queries + r * CodeScratch::Stride(params_.kv.k_dim);
    std::copy_n(tile_.q[r], dim, query);
    std::fill(query + dim, query + padded, 0.0f);
    RotateKvAvx2(query, dim, planes_.rotation);
    const float* const exact = tile_.q[r] + dim;
    if (!IntegerKeys(planes_)) {
      // The rotation's factor is a power of two.
      for (int i = 0; i < dim && planes_.rotation > 1; ++i) query[i] /= static_cast<float>(planes_.rotation);
      std::copy_n(exact, exact_dim, query + padded);
      if (params_.kv.sink_tokens > 0) StoreSinkQuery(r, query, 1.0f);
      return;
    }
    const __m256 scale = _mm256_set1_ps(score_scale_);
    for (int i = 0; i < exact_dim; i += 8) {
      _mm256_store_ps(query + padded + i, _mm256_mul_ps(_mm256_loadu_ps(exact + i), scale));
    }
    int8_t* const codes = scratch_.codes + r * CodeScratch::Stride(params_.kv.k_dim);
    int32_t* const start = scratch_.starts + r * CodeScratch::Stride(params_.kv.k_dim) / 4;
    const float query_scale = RoundQuery(query, padded, codes);
    if (params_.kv.sink_tokens > 0) {
      for (int i = 0; i < padded; ++i) query[i] = codes[i];
      StoreSinkQuery(r, query, StoredScoreScale(planes_, query_scale));
    }
    WithKvCode(coding.code, [&](auto code) {
      for (int first = 0, g = 0; first < coding.num_units(); first += coding.group / kKvUnit, ++g) {
        __m256i sum = _mm256_setzero_si256();
        const int last = std::min(first + coding.group / kKvUnit, coding.num_units());
        for (int u = first; u < last; ++u) {
          const __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes + u * kKvUnit));
          sum = _mm256_sub_epi32(sum, Dot32<KvCode::kInt6>(_mm256_set1_epi8(kCodeBias<code>), bytes));
        }
        _mm256_store_si256(reinterpret_cast<__m256i*>(start + 8 * g), sum);
      }
      queries_[r] = {codes, start, query + padded, StoredScoreScale(planes_, score_scale_) * query_scale * kCodeStep<code>};
    });
  }

  // Returns the scale.
  static float RoundQuery(const float* query, int padded, int8_t* codes) {
    __m256i largest = _mm256_setzero_si256();  // magnitudes order as their bits do, NaN above infinity
    for (int i = 0; i < padded; i += 8) {
      const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(query + i));
      largest = _mm256_max_epi32(largest, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
    }
    alignas(32) int32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), largest);
    const float scale = QueryScale(std::bit_cast<float>(*std::max_element(lanes, lanes + 8)));
    const __m256 inverse = _mm256_set1_ps(scale == 0 ? 0.0f : 1.0f / scale);
    const auto eight = [&](int i) { return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(query + i), inverse)); };
    for (int i = 0; i < padded; i += kKvUnit) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(codes + i), PackBytes(eight(i), eight(i + 8), eight(i + 16), eight(i + 24)));
    }
    return scale;
  }

  void FindRows(const PagedKv& kv, int64_t chunk_begin, TokenRange tokens) {
    const KvPlanes& planes = *kv.planes;
    const auto [begin, end] = tokens;
    std::byte* region = nullptr;
    int64_t token = 0;
    for (int t = begin; t < end; ++t, ++token) {
      if (region == nullptr || token == kv.block_tokens) {
        region = KvRegion(kv, tile_.slot, chunk_begin + t, tile_.kv_head);
        token = (chunk_begin + t) % kv.block_tokens;
      }
      keys_.main[t] = planes.key.Main(region, token);
      keys_.high[t] = planes.key.High(region, token);
      keys_.scales[t] = planes.key.Scales(region, token);
      exact_[t] = planes.Exact(region, token);
      if (planes.value_in_key) continue;
      values_.main[t] = planes.value.Main(region, token);
      values_.high[t] = planes.value.High(region, token);
      values_.scales[t] = planes.value.Scales(region, token);
    }
    const auto repeat = [&](int from, int to, int visible) {
      for (int t = from; t < to; ++t) {
        keys_.main[t] = keys_.main[visible], keys_.high[t] = keys_.high[visible];
        keys_.scales[t] = keys_.scales[visible], exact_[t] = exact_[visible];
      }
    };
    repeat(begin & ~7, begin, begin);
    repeat(end, (end + 7) & ~7, end - 1);
  }

  // Calls fn(first row, rows, begin, end) for the groups of rows and the tokens of [stage_begin, stage_end) they see, in
  // whole eights.
  template <typename Fn>
  void ForEachScoreGroup(const ChunkRanges& ranges, int stage_begin, int stage_end, Fn&& fn) {
    ForEachGroup(tile_.num_rows, kMaxGroupRows, [&](int row, int rows) {
      int begin = kChunkTokens, end = 0;
      for (int r = row; r < row + rows; ++r) {
        if (ranges.begin[r] >= ranges.end[r]) continue;
        begin = std::min<int>(begin, ranges.begin[r]);
        end = std::max<int>(end, ranges.end[r]);
      }
      begin = std::max(begin, stage_begin) & ~7;
      end = (std::min(end, stage_end) + 7) & ~7;
      if (begin < end) fn(row, rows, begin, end);
    });
  }

  template <KvCode kCode>
  void CodeScores(const ChunkRanges& ranges, TokenRange tokens) {
    const KvCoding& coding = planes_.key.coding;
    if (tile_.num_rows <= kMaxGroupRows) {
      ForEachScoreGroup(ranges, tokens.begin & ~7, kChunkTokens, [&](int row, int rows, int begin, int end) {
        for (int t = begin; t < end; t += kAheadTokens) {
          const int next = std::min(t + kAheadTokens, end);
          PrefetchValues(std::max(t, tokens.begin), std::min(next, tokens.end));
          CodeGroup<kCode, false>(rows, queries_ + row, keys_, coding, exact_, planes_.exact_dim, t, next,
                                  scratch_.scores + row * kScoreStride);
        }
      });
      return;
    }
    const int padded = coding.padded(), num_units = coding.num_units();
    const int stage = std::clamp(kKeyStageBytes / padded / 8 * 8, 8, kChunkTokens);
    for (int t = tokens.begin / stage * stage; t < tokens.end; t += stage) {
      const int first = std::max(t, tokens.begin) & ~7, last = (std::min(t + stage, tokens.end) + 7) & ~7;
      auto* bytes = reinterpret_cast<uint8_t*>(scratch_.key_stage);
      for (int i = first; i < last; ++i, bytes += padded) {
        for (int u = 0; u < num_units; ++u) {
          constexpr int kMain = kCode == KvCode::kInt8 ? 32 : 16, kHigh = kCode == KvCode::kInt6 ? 8 : 0;
          _mm256_store_si256(reinterpret_cast<__m256i*>(bytes + u * kKvUnit),
                             LoadFactor<kCode, false>(keys_.main[i] + u * kMain, keys_.high[i] + u * kHigh));
        }
        staged_.main[i] = bytes;
        staged_.high[i] = bytes;
        staged_.scales[i] = keys_.scales[i];
      }
      ForEachScoreGroup(ranges, first, std::min(t + stage, tokens.end), [&](int row, int rows, int begin, int end) {
        CodeGroup<kCode, true>(rows, queries_ + row, staged_, coding, exact_, planes_.exact_dim, begin, end,
                               scratch_.scores + row * kScoreStride);
      });
    }
  }

  void FloatScores(const ChunkRanges& ranges, TokenRange tokens, const KvCoding& coding, const float* query) {
    const KvCodec& codec = KvCodecOf(coding.code);
    const int padded = coding.padded(), width = padded + planes_.exact_dim;
    const int stage = std::clamp(kKeyStageBytes / 4 / width / 8 * 8, 8, kChunkTokens);
    const float* queries[kMaxTileRows];
    for (int r = 0; r < tile_.num_rows; ++r) queries[r] = query + r * CodeScratch::Stride(params_.kv.k_dim);
    for (int t = tokens.begin / stage * stage; t < tokens.end; t += stage) {
      const int first = std::max(t, tokens.begin) & ~7, last = (std::min(t + stage, tokens.end) + 7) & ~7;
      const float* keys[kChunkTokens];
      float* at = scratch_.key_stage;
      for (int i = first; i < last; ++i, at += width) {
        WithKvCode(coding.code, [&](auto code) {
          for (int u = 0; u < coding.num_units(); ++u) {
            DecodeKvUnit<code>(keys_.main[i] + u * codec.main_bytes, keys_.high[i] + u * codec.high_bytes,
                               BF16ToF32(keys_.scales[i][u * kKvUnit / coding.group]), at + u * kKvUnit);
          }
        });
        for (int d = 0; d < planes_.exact_dim; d += 8) {
          _mm256_storeu_ps(at + padded + d, LoadF32(reinterpret_cast<const BF16Bits*>(exact_[i] + d)));
        }
        keys[i] = at;
      }
      ForEachScoreGroup(ranges, first, std::min(t + stage, tokens.end), [&](int row, int rows, int begin, int end) {
        kernels_.scores(rows, queries + row, keys, width, score_scale_, begin, end, scratch_.scores + row * kScoreStride, {});
      });
    }
  }

  // What the second product will read (Ahead in attention_kernels_avx2.h).
  void PrefetchValues(int begin, int end) const {
    if (planes_.value_in_key) return;
    for (int t = begin; t < end; ++t) {
      for (int at = 0; at < planes_.value.main_row; at += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(values_.main[t] + at), _MM_HINT_T1);
      }
    }
  }

  // Values [d, d + dims) of tokens [begin, end) as floats; stage[t]: where those of token t are.
  void StageValues(const CodeRows& rows, const KvCoding& coding, int begin, int end, int d, int dims, const float** stage) {
    const KvCodec& codec = KvCodecOf(coding.code);
    const int main_bytes = codec.main_bytes, high_bytes = codec.high_bytes;
    float* at = scratch_.value_stage;
    WithKvCode(coding.code, [&](auto code) {
      for (int t = begin; t < end; ++t, at += kStageDims) {
        for (int i = 0; i < dims; i += kKvUnit) {
          const int unit = (d + i) / kKvUnit;
          DecodeKvUnit<code>(rows.main[t] + unit * main_bytes, rows.high[t] + unit * high_bytes,
                             BF16ToF32(rows.scales[t][unit * kKvUnit / coding.group]), at + i);
        }
        stage[t] = at;
      }
    });
  }

  const AttentionParams& params_;
  const ChunkKernels<float>& kernels_;
  const KvPlanes& planes_;
  const float score_scale_;  // scores are exponents to base 2
  const RowTile& tile_;
  const CodeScratch scratch_;
  CodeQuery queries_[kMaxTileRows];
  CodeRows keys_;
  CodeRows staged_;
  CodeRows values_;
  const uint16_t* exact_[kChunkTokens];
};

}  // namespace cachalot
