// F32, F16, BF16 and FP8 weights against F32 activations: fused multiply-adds, one chain over k for each
// output.
//
// Bounds, for a core at 8 FMA lanes x 2 a cycle that has about 8 GB/s of the memory: a weight of 2 bytes
// costs 0.25 ns to read and 1/16 cycle a row to use, so up to about 12 rows the memory is the limit and above
// it the FMAs are. A tile of 6 rows x 16 columns is 12 chains, the most that 16 registers hold and enough to
// hide the FMA's latency; few rows take several panels at once for that. Weights are converted inside the
// tile: for 6 rows that is 2 to 6 instructions beside 12 FMAs, and it was faster at every number of rows than
// converting a panel once and reading it back (F16, 576 x 3072, 24 rows: 90 against 75 GFLOP/s of a core's
// 103; 512 rows: 93 against 89). FP8 takes 16 instructions, so from kManyRows on a panel becomes F32 once.
// The chain over k is the same in every form.
#include <immintrin.h>

#include <type_traits>

#include "kernels/matmul/panel.h"
#include "kernels/matmul/tile_avx2.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxPanelsAtOnce = 4;

// FP8 from kManyRows rows on: a piece of k of a panel becomes F32 in this thread's scratch, once for all
// tiles of a block of rows; where k has several pieces, the chains wait there in between ([row][16]).
constexpr int64_t kManyRows = 9;
constexpr int64_t kMaxPiece = 1024;
constexpr int64_t kRowBlock = 1536;
static_assert((kMaxPiece + kRowBlock) * kPanelRows * 4 <= kThreadScratchBytes);

// --- One step of k: 16 weights of a panel as two vectors (rows 0..7 and 8..15). ---

struct WeightsF32 {
  static constexpr int64_t kTileRows = 6;
  static constexpr int64_t kStepBytes = 64;
  static void Load(const std::byte* step, __m256& low, __m256& high) {
    const float* p = reinterpret_cast<const float*>(step);
    low = _mm256_loadu_ps(p);
    high = _mm256_loadu_ps(p + 8);
  }
};

struct WeightsF16 {
  static constexpr int64_t kTileRows = 6;
  static constexpr int64_t kStepBytes = 32;
  static void Load(const std::byte* step, __m256& low, __m256& high) {
    const __m128i* p = reinterpret_cast<const __m128i*>(step);
    low = _mm256_cvtph_ps(_mm_loadu_si128(p));
    high = _mm256_cvtph_ps(_mm_loadu_si128(p + 1));
  }
};

// Pairs (row j, row j + 8): one load, a shift and a mask.
struct WeightsBF16 {
  static constexpr int64_t kTileRows = 6;
  static constexpr int64_t kStepBytes = 32;
  static void Load(const std::byte* step, __m256& low, __m256& high) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(step));
    low = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    high = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

// Four codes of a row in each 32-bit lane. A code's exponent and mantissa, moved to where F32 has its own,
// read 2^-120 of the value (subnormals included), which the scales make good: they come multiplied by 2^120.
struct WeightsFP8 {
  static constexpr int64_t kTileRows = 4;  // the codes and scales need registers too
  static constexpr int64_t kBlock = 128;
  static constexpr int64_t kScaleBytes = 64;
  static constexpr int64_t kQuadBytes = 64;
  static constexpr int64_t kBlockBytes = kScaleBytes + kBlock / 4 * kQuadBytes;
  template <int kCode>
  static __m256 Decode(__m256i codes, __m256 scale) {
    // The code at the top of the lane, then its sign spread over four bits; the mask leaves one of them.
    const __m256i top = kCode == 3 ? codes : _mm256_slli_epi32(codes, 24 - 8 * kCode);
    const __m256i bits =
        _mm256_and_si256(_mm256_srai_epi32(top, 4), _mm256_set1_epi32(static_cast<int>(0x87f00000u)));
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), scale);
  }
};

// Calls use(kk, low[p], high[p]) for kk = 0 .. count - 1 with the weights of kPanels panels, from their first
// k on.
template <typename Weights, int kPanels, typename Use>
inline __attribute__((always_inline)) void ForEachStep(const std::byte* panel, int64_t panel_bytes,
                                                       int64_t count, Use&& use) {
  __m256 low[kPanels], high[kPanels];
  for (int64_t kk = 0; kk < count; ++kk) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      Weights::Load(panel + p * panel_bytes + kk * Weights::kStepBytes, low[p], high[p]);
    }
    use(kk, low, high);
  }
}

// From the beginning of a block on.
template <typename Weights, int kPanels, typename Use>
requires std::is_same_v<Weights, WeightsFP8>
inline __attribute__((always_inline)) void ForEachStep(const std::byte* panel, int64_t panel_bytes,
                                                       int64_t count, Use&& use) {
  const __m256 unit = _mm256_set1_ps(0x1p120f);
  __m256 low[kPanels], high[kPanels], scale_low[kPanels], scale_high[kPanels];
  __m256i codes_low[kPanels], codes_high[kPanels];
  for (int64_t k0 = 0; k0 < count; k0 += Weights::kBlock, panel += Weights::kBlockBytes) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const float* scales = reinterpret_cast<const float*>(panel + p * panel_bytes);
      scale_low[p] = _mm256_mul_ps(_mm256_loadu_ps(scales), unit);
      scale_high[p] = _mm256_mul_ps(_mm256_loadu_ps(scales + 8), unit);
    }
    const int64_t end = Smaller(Weights::kBlock, count - k0);
    const auto step = [&]<int kCode>(int64_t kk) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        low[p] = Weights::template Decode<kCode>(codes_low[p], scale_low[p]);
        high[p] = Weights::template Decode<kCode>(codes_high[p], scale_high[p]);
      }
      use(k0 + kk + kCode, low, high);
    };
    for (int64_t kk = 0; kk < end; kk += 4) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        const std::byte* quad = panel + p * panel_bytes + Weights::kScaleBytes + kk / 4 * Weights::kQuadBytes;
        codes_low[p] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(quad));
        codes_high[p] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(quad + 32));
      }
      step.template operator()<0>(kk);
      if (kk + 1 < end) step.template operator()<1>(kk);
      if (kk + 2 < end) step.template operator()<2>(kk);
      if (kk + 3 < end) step.template operator()<3>(kk);
    }
  }
}

// --- A tile: kRows rows of x against kPanels panels. ---

// Where the tile's chains come from and go to.
struct Piece {
  int64_t k_begin = 0;
  int64_t k_count = 0;
  bool first = true;           // chains start at zero, else at `waiting`
  bool last = true;            // chains are finished, else they wait
  float* waiting;              // [row][panel][16], of the tile's first row and panel
  int64_t waiting_stride = 0;  // floats from row to row; 0 where no chain has to wait
};

template <typename Weights, int kRows, int kPanels>
void Tile(const PanelTask& task, const std::byte* panel, int64_t panel_bytes, int64_t row, int64_t column,
          const Piece& piece) {
  const float* x[kRows];
  __m256 sum[kRows][kPanels][2];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    x[i] = XRow<float>(task, row + i) + piece.k_begin;
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      const float* from = piece.waiting + i * piece.waiting_stride + p * kPanelRows;
      sum[i][p][0] = piece.first ? _mm256_setzero_ps() : _mm256_loadu_ps(from);
      sum[i][p][1] = piece.first ? _mm256_setzero_ps() : _mm256_loadu_ps(from + 8);
    }
  }
  ForEachStep<Weights, kPanels>(
      panel, panel_bytes,
      piece.k_count, [&](int64_t kk, const __m256* low, const __m256* high) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) {
          const __m256 xv = _mm256_broadcast_ss(x[i] + kk);
#pragma GCC unroll 8
          for (int p = 0; p < kPanels; ++p) {
            sum[i][p][0] = _mm256_fmadd_ps(xv, low[p], sum[i][p][0]);
            sum[i][p][1] = _mm256_fmadd_ps(xv, high[p], sum[i][p][1]);
          }
        }
      });
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      if (piece.last) {
        StoreTileRow(task, row + i, column + p * kPanelRows, sum[i][p][0], sum[i][p][1]);
      } else {
        float* to = piece.waiting + i * piece.waiting_stride + p * kPanelRows;
        _mm256_storeu_ps(to, sum[i][p][0]);
        _mm256_storeu_ps(to + 8, sum[i][p][1]);
      }
    }
  }
}

// `rows` (1..6) rows against num_panels panels, as many panels at once as the registers allow.
template <typename Weights>
void TileRow(const PanelTask& task, const std::byte* panels, int64_t panel_bytes, int64_t num_panels,
             int64_t row, int64_t rows, int64_t column, const Piece& piece) {
  const auto sweep = [&]<int kRows, int kPanels>() {
    Piece at = piece;
    int64_t p = 0;
    for (; p + kPanels <= num_panels; p += kPanels, at.waiting += kPanels * kPanelRows) {
      Tile<Weights, kRows, kPanels>(task, panels + p * panel_bytes, panel_bytes, row, column + p * kPanelRows,
                                    at);
    }
    if constexpr (kPanels > 1) {
      for (; p < num_panels; ++p, at.waiting += kPanelRows) {
        Tile<Weights, kRows, 1>(task, panels + p * panel_bytes, panel_bytes, row, column + p * kPanelRows,
                                at);
      }
    }
  };
  switch (rows) {
    case 1:
      return sweep.template operator() < 1, std::is_same_v<Weights, WeightsFP8> ? 2 : 4 > ();
    case 2:
      return sweep.template operator() < 2, std::is_same_v<Weights, WeightsFP8> ? 1 : 2 > ();
    case 3:
      return sweep.template operator()<3, 1>();
    case 4:
      return sweep.template operator()<4, 1>();
    case 5:
      return sweep.template operator()<5, 1>();
    default:
      return sweep.template operator()<6, 1>();
  }
}

template <typename Weights>
void Direct(const PanelTask& task) {
  const Piece whole = {.k_begin = 0, .k_count = task.k, .waiting = reinterpret_cast<float*>(task.scratch)};
  // Panels outside: the later tiles find them in the cache.
  for (int64_t p = 0; p < task.num_panels; p += kMaxPanelsAtOnce) {
    const int64_t panels = Smaller(kMaxPanelsAtOnce, task.num_panels - p);
    ForEachTile(task.m, Weights::kTileRows, [&](int64_t row, int64_t rows) {
      TileRow<Weights>(task, task.panels + p * task.panel_bytes, task.panel_bytes, panels, row, rows,
                       p * kPanelRows, whole);
    });
  }
}

// --- FP8, many rows. ---

// k_count steps of a panel from k_begin, the beginning of a block of 128, as F32 [k_count][16].
void ConvertFp8(const std::byte* panel, int64_t k_begin, int64_t k_count, float* out) {
  panel += k_begin / WeightsFP8::kBlock * WeightsFP8::kBlockBytes;
  ForEachStep<WeightsFP8, 1>(
      panel, 0,
      k_count, [&](int64_t kk, const __m256* low, const __m256* high) __attribute__((always_inline)) {
        _mm256_storeu_ps(out + kk * kPanelRows, low[0]);
        _mm256_storeu_ps(out + kk * kPanelRows + 8, high[0]);
      });
}

void ConvertedFp8(const PanelTask& task) {
  float* weights = reinterpret_cast<float*>(task.scratch);
  float* waiting = weights + kMaxPiece * kPanelRows;
  const int64_t num_pieces = (task.k + kMaxPiece - 1) / kMaxPiece;
  const int64_t piece_k = ((task.k + num_pieces - 1) / num_pieces + 127) / 128 * 128;

  for (int64_t p = 0; p < task.num_panels; ++p) {
    for (int64_t row0 = 0; row0 < task.m; row0 += kRowBlock) {
      for (int64_t k0 = 0; k0 < task.k; k0 += piece_k) {
        Piece piece;
        piece.k_begin = k0;
        piece.k_count = Smaller(piece_k, task.k - k0);
        piece.first = k0 == 0;
        piece.last = k0 + piece_k >= task.k;
        piece.waiting_stride = kPanelRows;
        ConvertFp8(task.panels + p * task.panel_bytes, k0, piece.k_count, weights);
        ForEachTile(Smaller(kRowBlock, task.m - row0), WeightsF32::kTileRows, [&](int64_t row, int64_t rows) {
          piece.waiting = waiting + row * kPanelRows;
          TileRow<WeightsF32>(task, reinterpret_cast<const std::byte*>(weights), 0, 1, row0 + row, rows,
                              p * kPanelRows, piece);
        });
      }
    }
  }
}

void RunFp8(const PanelTask& task) {
  if (task.m < kManyRows) {
    Direct<WeightsFP8>(task);
  } else {
    ConvertedFp8(task);
  }
}

constexpr PanelKernel kKernels[] = {
    {DType::kF32, Isa::kAvx2, Direct<WeightsF32>, nullptr},
    {DType::kF16, Isa::kAvx2, Direct<WeightsF16>, nullptr},
    {DType::kBF16, Isa::kAvx2, Direct<WeightsBF16>, nullptr},
    {DType::kFP8E4M3, Isa::kAvx2, RunFp8, nullptr},
};

}  // namespace

std::span<const PanelKernel> FloatKernelsAvx2() {
  return kKernels;
}

}  // namespace cachalot
