// F32, F16, BF16 and FP8 weights against F32 activations: fused multiply-adds, one chain over k for each output.
//
// Bounds, for a core at 8 FMA lanes x 2 a cycle and about 8 GB/s of its own: a weight of 2 bytes costs 0.25 ns to read
// and 1/16 cycle a row to use, so up to about 12 rows the memory is the limit and above it the FMAs are. Few rows:
// tiles convert the weights as they go, several panels at once where a tile alone has too few chains to hide the FMA's
// latency. Many rows: a piece of k of a few panels becomes F32 in this thread's scratch (L2) once, and all tiles run
// over it: 6 rows x 16 columns are 12 chains, the most that 16 registers hold. Where k is cut in pieces, the chains
// wait in the scratch in between, so the sum is the same chain in every form.
#include <immintrin.h>

#include <type_traits>

#include "kernels/matmul/panel.h"
#include "kernels/matmul/tile_avx2.h"

namespace cachalot {
namespace {

constexpr int64_t kTileRows = 6;
// From this many rows on, converting once pays for the store and the reload.
constexpr int64_t kManyRows = 13;
constexpr int64_t kMaxPanelsAtOnce = 4;

// The scratch: F32 weights [panel][k piece][16], and the waiting chains of a block of rows [row][panel][16].
constexpr int64_t kMaxPiece = 1536;
constexpr int64_t kWeightFloats = 2 * kMaxPiece * kPanelRows;
constexpr int64_t kRowBlock = 128;
static_assert((kWeightFloats + kRowBlock * kMaxPanelsAtOnce * kPanelRows) * 4 <= kThreadScratchBytes);

// --- One step of k: 16 weights of a panel as two vectors (rows 0..7 and 8..15). ---

struct WeightsF32 {
  static constexpr int64_t kStepBytes = 64;
  static void Load(const std::byte* step, __m256& low, __m256& high) {
    const float* p = reinterpret_cast<const float*>(step);
    low = _mm256_loadu_ps(p);
    high = _mm256_loadu_ps(p + 8);
  }
};

struct WeightsF16 {
  static constexpr int64_t kStepBytes = 32;
  static void Load(const std::byte* step, __m256& low, __m256& high) {
    const __m128i* p = reinterpret_cast<const __m128i*>(step);
    low = _mm256_cvtph_ps(_mm_loadu_si128(p));
    high = _mm256_cvtph_ps(_mm_loadu_si128(p + 1));
  }
};

// Pairs (row j, row j + 8): one load, a shift and a mask.
struct WeightsBF16 {
  static constexpr int64_t kStepBytes = 32;
  static void Load(const std::byte* step, __m256& low, __m256& high) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(step));
    low = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    high = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

// Pairs (row j, row j + 8) again. A code's exponent and mantissa, moved to where F16 has its own, read 2^-8 of the
// value (subnormals included), which the scales make good: they come multiplied by 2^8.
struct WeightsFP8 {
  static constexpr int64_t kStepBytes = 16;
  static __m256 Widen(__m128i code_in_high_byte) {
    const __m128i half = _mm_and_si128(_mm_srai_epi16(code_in_high_byte, 1), _mm_set1_epi16(static_cast<int16_t>(0xbf80)));
    return _mm256_cvtph_ps(half);
  }
  static void Load(const std::byte* step, __m256 scale_low, __m256 scale_high, __m256& low, __m256& high) {
    const __m128i pairs = _mm_loadu_si128(reinterpret_cast<const __m128i*>(step));
    low = _mm256_mul_ps(Widen(_mm_slli_epi16(pairs, 8)), scale_low);
    high = _mm256_mul_ps(Widen(pairs), scale_high);
  }
};

// Calls use(kk, low[p], high[p]) for kk = 0 .. count - 1 with the weights of kPanels panels, from their first k on.
template <typename Weights, int kPanels, typename Use>
inline __attribute__((always_inline)) void ForEachStep(const std::byte* panel, int64_t panel_bytes, int64_t count,
                                                       Use&& use) {
  __m256 low[kPanels], high[kPanels];
  for (int64_t kk = 0; kk < count; ++kk) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      Weights::Load(panel + p * panel_bytes + kk * Weights::kStepBytes, low[p], high[p]);
    }
    use(kk, low, high);
  }
}

// Always whole panels: blocks of scales [16] and up to 128 steps.
template <typename Weights, int kPanels, typename Use>
  requires std::is_same_v<Weights, WeightsFP8>
inline __attribute__((always_inline)) void ForEachStep(const std::byte* panel, int64_t panel_bytes, int64_t count,
                                                       Use&& use) {
  constexpr int64_t kBlock = 128, kScaleBytes = 64;
  const __m256 unit = _mm256_set1_ps(256.0f);
  __m256 low[kPanels], high[kPanels], scale_low[kPanels], scale_high[kPanels];
  for (int64_t k0 = 0; k0 < count; k0 += kBlock, panel += kScaleBytes + kBlock * Weights::kStepBytes) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const float* scales = reinterpret_cast<const float*>(panel + p * panel_bytes);
      scale_low[p] = _mm256_mul_ps(_mm256_loadu_ps(scales), unit);
      scale_high[p] = _mm256_mul_ps(_mm256_loadu_ps(scales + 8), unit);
    }
    const int64_t end = Smaller(kBlock, count - k0);
    for (int64_t kk = 0; kk < end; ++kk) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        Weights::Load(panel + p * panel_bytes + kScaleBytes + kk * Weights::kStepBytes, scale_low[p], scale_high[p],
                      low[p], high[p]);
      }
      use(k0 + kk, low, high);
    }
  }
}

// --- A tile: kRows rows of x against kPanels panels. ---

// Where the tile's chains come from and go to.
struct Piece {
  int64_t k_begin = 0;
  int64_t k_count = 0;
  bool first = true;             // chains start at zero, else at `waiting`
  bool last = true;              // chains are finished, else they wait
  float* waiting;                // [row][panel][16], of the tile's first row and panel
  int64_t waiting_stride = 0;    // floats from row to row; 0 where no chain has to wait
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
  ForEachStep<Weights, kPanels>(panel, panel_bytes, piece.k_count,
                                [&](int64_t kk, const __m256* low, const __m256* high) __attribute__((always_inline)) {
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
void TileRow(const PanelTask& task, const std::byte* panels, int64_t panel_bytes, int64_t num_panels, int64_t row,
             int64_t rows, int64_t column, const Piece& piece) {
  const auto sweep = [&]<int kRows, int kPanels>() {
    Piece at = piece;
    int64_t p = 0;
    for (; p + kPanels <= num_panels; p += kPanels, at.waiting += kPanels * kPanelRows) {
      Tile<Weights, kRows, kPanels>(task, panels + p * panel_bytes, panel_bytes, row, column + p * kPanelRows, at);
    }
    if constexpr (kPanels > 1) {
      for (; p < num_panels; ++p, at.waiting += kPanelRows) {
        Tile<Weights, kRows, 1>(task, panels + p * panel_bytes, panel_bytes, row, column + p * kPanelRows, at);
      }
    }
  };
  switch (rows) {
    case 1: return sweep.template operator()<1, 4>();
    case 2: return sweep.template operator()<2, 2>();
    case 3: return sweep.template operator()<3, 2>();
    case 4: return sweep.template operator()<4, 1>();
    case 5: return sweep.template operator()<5, 1>();
    default: return sweep.template operator()<6, 1>();
  }
}

// Cuts `count` rows into tiles of at most six, of nearly equal height.
template <typename Fn>
void ForEachTile(int64_t count, Fn&& fn) {
  const int64_t tiles = (count + kTileRows - 1) / kTileRows;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t begin = count * t / tiles;
    fn(begin, count * (t + 1) / tiles - begin);
  }
}

template <typename Weights>
void FewRows(const PanelTask& task) {
  const Piece whole = {.k_begin = 0, .k_count = task.k, .waiting = reinterpret_cast<float*>(task.scratch)};
  // Panels outside: the later tiles find them in the cache.
  for (int64_t p = 0; p < task.num_panels; p += kMaxPanelsAtOnce) {
    const int64_t panels = Smaller(kMaxPanelsAtOnce, task.num_panels - p);
    ForEachTile(task.m, [&](int64_t row, int64_t rows) {
      TileRow<Weights>(task, task.panels + p * task.panel_bytes, task.panel_bytes, panels, row, rows, p * kPanelRows,
                       whole);
    });
  }
}

// --- Many rows. ---

// k_count steps of a panel from k_begin as F32 [k_count][16].
template <typename Weights>
void Convert(const std::byte* panel, int64_t k_begin, int64_t k_count, float* out) {
  ForEachStep<Weights, 1>(panel + k_begin * Weights::kStepBytes, 0, k_count,
                          [&](int64_t kk, const __m256* low, const __m256* high) __attribute__((always_inline)) {
    _mm256_storeu_ps(out + kk * kPanelRows, low[0]);
    _mm256_storeu_ps(out + kk * kPanelRows + 8, high[0]);
  });
}

template <>
void Convert<WeightsFP8>(const std::byte* panel, int64_t k_begin, int64_t k_count, float* out) {
  // Pieces begin at a block of 128.
  panel += k_begin / 128 * (64 + 128 * WeightsFP8::kStepBytes);
  ForEachStep<WeightsFP8, 1>(panel, 0, k_count,
                             [&](int64_t kk, const __m256* low, const __m256* high) __attribute__((always_inline)) {
    _mm256_storeu_ps(out + kk * kPanelRows, low[0]);
    _mm256_storeu_ps(out + kk * kPanelRows + 8, high[0]);
  });
}

template <typename Weights>
void ManyRows(const PanelTask& task) {
  float* weights = reinterpret_cast<float*>(task.scratch);
  float* waiting = weights + kWeightFloats;
  const int64_t num_pieces = (task.k + kMaxPiece - 1) / kMaxPiece;
  const int64_t piece_k = ((task.k + num_pieces - 1) / num_pieces + 127) / 128 * 128;
  const int64_t panels_at_once =
      Smaller(kMaxPanelsAtOnce, kWeightFloats / (kPanelRows * Smaller(piece_k, task.k)));
  // With k in one piece no chain has to wait, and the rows need no blocks.
  const int64_t row_block = num_pieces == 1 ? task.m : kRowBlock;

  for (int64_t p0 = 0; p0 < task.num_panels; p0 += panels_at_once) {
    const int64_t panels = Smaller(panels_at_once, task.num_panels - p0);
    for (int64_t row0 = 0; row0 < task.m; row0 += row_block) {
      for (int64_t k0 = 0; k0 < task.k; k0 += piece_k) {
        Piece piece;
        piece.k_begin = k0;
        piece.k_count = Smaller(piece_k, task.k - k0);
        piece.first = k0 == 0;
        piece.last = k0 + piece_k >= task.k;
        piece.waiting_stride = num_pieces == 1 ? 0 : panels * kPanelRows;
        for (int64_t p = 0; p < panels; ++p) {
          Convert<Weights>(task.panels + (p0 + p) * task.panel_bytes, k0, piece.k_count,
                           weights + p * piece.k_count * kPanelRows);
        }
        ForEachTile(Smaller(row_block, task.m - row0), [&](int64_t row, int64_t rows) {
          piece.waiting = waiting + row * piece.waiting_stride;
          TileRow<WeightsF32>(task, reinterpret_cast<const std::byte*>(weights),
                              piece.k_count * kPanelRows * static_cast<int64_t>(sizeof(float)), panels, row0 + row,
                              rows, p0 * kPanelRows, piece);
        });
      }
    }
  }
}

template <typename Weights>
void RunFloat(const PanelTask& task) {
  if (task.m < kManyRows) {
    FewRows<Weights>(task);
  } else {
    ManyRows<Weights>(task);
  }
}

constexpr PanelKernel kKernels[] = {
    {DType::kF32, Isa::kAvx2, RunFloat<WeightsF32>, nullptr},
    {DType::kF16, Isa::kAvx2, RunFloat<WeightsF16>, nullptr},
    {DType::kBF16, Isa::kAvx2, RunFloat<WeightsBF16>, nullptr},
    {DType::kFP8E4M3, Isa::kAvx2, RunFloat<WeightsFP8>, nullptr},
};

}  // namespace

std::span<const PanelKernel> FloatKernelsAvx2() { return kKernels; }

}  // namespace cachalot
