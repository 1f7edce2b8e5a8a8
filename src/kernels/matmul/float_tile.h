// F32, F16, BF16 and FP8 weights against F32 activations: fused multiply-adds, one chain over k for each
// output, over V (matmul/tile.h). Bounds: matmul_float_avx2.cc, matmul_float_avx512.cc.
//
// A configuration `Tiles` says what the registers hold:
//   V                            the lanes
//   kRows, kFp8Rows              rows of a tile; FP8's codes and scales need registers too
//   PanelsAtOnce(rows)           and how many panels side by side, so that few rows have chains enough
//   kConvertedRows               from so many rows on an FP8 panel becomes F32 once
#pragma once

#include <immintrin.h>

#include <type_traits>

#include "kernels/matmul/tile.h"

namespace cachalot {
namespace {

constexpr int64_t kMaxPanelsAtOnce = 4;

// FP8 as F32: a piece of k of a panel in this thread's scratch, once for all tiles of a block of rows; where
// k has several pieces, the chains wait there in between ([row][16]).
constexpr int64_t kMaxPiece = 1024;
constexpr int64_t kRowBlock = 1536;
static_assert((kMaxPiece + kRowBlock) * kPanelRows * 4 <= kThreadScratchBytes);

// --- One step of k: the 16 weights of a panel. ---

template <typename V>
struct WeightsF32 {
  static constexpr int64_t kStepBytes = 64;
  static typename V::F32 Load(const std::byte* step) { return V::LoadF32(step); }
};

template <typename V>
struct WeightsF16 {
  static constexpr int64_t kStepBytes = 32;
  static typename V::F32 Load(const std::byte* step) { return V::LoadF16(step); }
};

template <typename V>
struct WeightsBF16 {
  static constexpr int64_t kStepBytes = 32;
  static typename V::F32 Load(const std::byte* step) { return V::LoadBF16Pairs(step); }
};

template <typename V>
struct WeightsFP8 {
  static constexpr int64_t kBlock = 128;
  static constexpr int64_t kScaleBytes = 64;
  static constexpr int64_t kQuadBytes = 64;
  static constexpr int64_t kBlockBytes = kScaleBytes + kBlock / 4 * kQuadBytes;
};

// What a tile that reads its panels from memory asks for ahead (codes_tile.h says why). Three to six rows gain
// 20 to 40 %; fewer, which have next to nothing to compute, nothing.
constexpr int64_t kStreamAhead = 2048;
constexpr bool Streams(int rows) {
  return rows >= 3 && rows <= 8;
}

// Calls use(kk, w) for kk = 0 .. count - 1 with the weights w[p] of kPanels panels, from their first k on.
template <typename V, typename Weights, int kPanels, bool kStream, typename Use>
inline __attribute__((always_inline)) void ForEachStep(const std::byte* panel, int64_t panel_bytes,
                                                       int64_t count, Use&& use) {
  typename V::F32 w[kPanels];
  for (int64_t kk = 0; kk < count; ++kk) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* step = panel + p * panel_bytes + kk * Weights::kStepBytes;
      w[p] = Weights::Load(step);
      if constexpr (kStream) _mm_prefetch(step + kStreamAhead, _MM_HINT_T1);
    }
    use(kk, w);
  }
}

// From the beginning of a block on.
template <typename V, typename Weights, int kPanels, bool kStream, typename Use>
requires std::is_same_v<Weights, WeightsFP8<V>>
inline __attribute__((always_inline)) void ForEachStep(const std::byte* panel, int64_t panel_bytes,
                                                       int64_t count, Use&& use) {
  const typename V::F32 unit = V::Set1(0x1p120f);
  typename V::F32 w[kPanels], scale[kPanels];
  typename V::Words codes[kPanels];
  for (int64_t k0 = 0; k0 < count; k0 += Weights::kBlock, panel += Weights::kBlockBytes) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) scale[p] = V::Mul(V::LoadF32(panel + p * panel_bytes), unit);
    const int64_t end = Smaller(Weights::kBlock, count - k0);
    const auto step = [&]<int kCode>(int64_t kk) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) w[p] = V::template DecodeFp8<kCode>(codes[p], scale[p]);
      use(k0 + kk + kCode, w);
    };
    for (int64_t kk = 0; kk < end; kk += 4) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        codes[p] =
            V::LoadWords(panel + p * panel_bytes + Weights::kScaleBytes + kk / 4 * Weights::kQuadBytes);
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
  bool stream = false;         // the weights come from memory
  float* waiting;              // [row][panel][16], of the tile's first row and panel
  int64_t waiting_stride = 0;  // floats from row to row; 0 where no chain has to wait
};

template <typename V, typename Weights, int kRows, int kPanels, bool kStream>
void Tile(const PanelTask& task, const std::byte* panel, int64_t panel_bytes, int64_t row, int64_t column,
          const Piece& piece) {
  const float* x[kRows];
  typename V::F32 sum[kRows][kPanels];
#pragma GCC unroll 32
  for (int i = 0; i < kRows; ++i) {
    x[i] = XRow<float>(task, row + i) + piece.k_begin;
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const float* from = piece.waiting + i * piece.waiting_stride + p * kPanelRows;
      sum[i][p] = piece.first ? V::Zero() : V::LoadF32(from);
    }
  }
  ForEachStep<V, Weights, kPanels, kStream>(
      panel, panel_bytes,
      piece.k_count, [&](int64_t kk, const typename V::F32* w) __attribute__((always_inline)) {
#pragma GCC unroll 32
        for (int i = 0; i < kRows; ++i) {
          const typename V::One xv = V::Broadcast(x[i] + kk);
#pragma GCC unroll 4
          for (int p = 0; p < kPanels; ++p) sum[i][p] = V::Fma(xv, w[p], sum[i][p]);
        }
      });
#pragma GCC unroll 32
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      if (piece.last) {
        V::StoreRow(task, row + i, column + p * kPanelRows, sum[i][p]);
      } else {
        V::StoreF32(piece.waiting + i * piece.waiting_stride + p * kPanelRows, sum[i][p]);
      }
    }
  }
}

// `rows` (1 .. kRows) rows against num_panels panels, as many panels at once as the registers allow.
template <typename Tiles, typename Weights, int kRows>
void TileRow(const PanelTask& task, const std::byte* panels, int64_t panel_bytes, int64_t num_panels,
             int64_t row, int64_t rows, int64_t column, const Piece& piece) {
  using V = typename Tiles::V;
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return TileRow<Tiles, Weights, kRows - 1>(task, panels, panel_bytes, num_panels, row, rows, column,
                                                piece);
    }
  }
  constexpr bool kFp8 = std::is_same_v<Weights, WeightsFP8<V>>;
  constexpr int kPanels = Tiles::PanelsAtOnce(kRows, kFp8);
  static_assert(kPanels <= kMaxPanelsAtOnce);
  Piece at = piece;
  int64_t p = 0;
  const auto tiles = [&]<int kCount, bool kStream>() {
    for (; p + kCount <= num_panels; p += kCount, at.waiting += kCount * kPanelRows) {
      Tile<V, Weights, kRows, kCount, kStream>(task, panels + p * panel_bytes, panel_bytes, row,
                                               column + p * kPanelRows, at);
    }
  };
  if constexpr (Streams(kRows) && !kFp8) {
    if (piece.stream) {
      tiles.template operator()<kPanels, true>();
      return tiles.template operator()<1, true>();
    }
  }
  tiles.template operator()<kPanels, false>();
  if constexpr (kPanels > 1) tiles.template operator()<1, false>();
}

template <typename Tiles, template <typename> typename WeightsOver,
          int kRows = std::is_same_v<WeightsOver<typename Tiles::V>, WeightsFP8<typename Tiles::V>>
                          ? Tiles::kFp8Rows
                          : Tiles::kRows>
void Direct(const PanelTask& task) {
  using Weights = WeightsOver<typename Tiles::V>;
  Piece whole = {.k_begin = 0, .k_count = task.k, .waiting = reinterpret_cast<float*>(task.scratch)};
  // Panels outside: the later tiles find them in the cache.
  for (int64_t p = 0; p < task.num_panels; p += kMaxPanelsAtOnce) {
    const int64_t panels = Smaller(kMaxPanelsAtOnce, task.num_panels - p);
    ForEachTile(task.m, kRows, [&](int64_t row, int64_t rows) {
      whole.stream = row == 0;
      TileRow<Tiles, Weights, kRows>(task, task.panels + p * task.panel_bytes, task.panel_bytes, panels, row,
                                     rows, p * kPanelRows, whole);
    });
  }
}

// --- FP8, many rows. ---

// k_count steps of a panel from k_begin, the beginning of a block of 128, as F32 [k_count][16].
template <typename V>
void ConvertFp8(const std::byte* panel, int64_t k_begin, int64_t k_count, float* out) {
  panel += k_begin / WeightsFP8<V>::kBlock * WeightsFP8<V>::kBlockBytes;
  ForEachStep<V, WeightsFP8<V>, 1, false>(
      panel, 0, k_count, [&](int64_t kk, const typename V::F32* w) __attribute__((always_inline)) {
        V::StoreF32(out + kk * kPanelRows, w[0]);
      });
}

template <typename Tiles>
void ConvertedFp8(const PanelTask& task) {
  using V = typename Tiles::V;
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
        ConvertFp8<V>(task.panels + p * task.panel_bytes, k0, piece.k_count, weights);
        ForEachTile(Smaller(kRowBlock, task.m - row0), Tiles::kRows, [&](int64_t row, int64_t rows) {
          piece.waiting = waiting + row * kPanelRows;
          TileRow<Tiles, WeightsF32<V>, Tiles::kRows>(task, reinterpret_cast<const std::byte*>(weights), 0, 1,
                                                      row0 + row, rows, p * kPanelRows, piece);
        });
      }
    }
  }
}

template <typename Tiles>
void RunFp8(const PanelTask& task) {
  if (task.m < Tiles::kConvertedRows) {
    Direct<Tiles, WeightsFP8>(task);
  } else {
    ConvertedFp8<Tiles>(task);
  }
}

}  // namespace
}  // namespace cachalot
