// Tiles of block formats (matmul/codes_avx2.h, codes_avx512.h): kRows rows of x against a panel, and the
// order of tiles.
//
// A format is a struct with
//   V, X, kTileRows        its lanes (matmul/tile.h), its blocks of x, and the rows of a tile
//   kBytes, kParts         of a panel's block: its size and its parts of 32 of k
//   Add(block, p, ...)     adds the products of part p to the sums
//   kExpandedBytes         of a part in the form that many rows share; 0: Add is as fast
//   Expand(block, p, out)  makes it, once for all tiles
//   AddExpanded(part, ...) the same sums from it, to the bit
//   kRowStreams            perhaps: how one row reads panels (RowStreams)
//   RowBlock, AddOfRow     perhaps, for one row: what it takes from a block once for all parts, and Add with that
#pragma once

#include <immintrin.h>

#include "base/memory_streams.h"
#include "kernels/matmul/tile.h"

namespace cachalot {
namespace {

// Of a tile: an output's chain for each row and lane.
template <typename V, int kRows>
using Sums = typename V::F32[kRows];

constexpr int64_t kExpandedCodeBytes = 32 * kPanelRows;  // a part of 32 of k, a byte for each code

constexpr int64_t kCodePanelCacheBytes = 20 << 10;
constexpr int64_t kExpandRows = 12;  // three tiles: from there on expanding pays

// Weights to be read later, asked for while a tile computes, a few lines with every part.
//   A tile asks for its share of the panels after these, at the end of a task too: a thread's next task
//   begins there (ThreadPool). Where nobody has asked for these panels, the first tile of rows asks for what
//   lies kStreamAhead behind its own part: the processor by itself runs less far ahead, since little of what
//   is computed fits its window (Zen 3, one row, 17 to 22 GB/s for Q4_0 and Q8_0, 11 to 20 for Q4_K). The
//   lines of a part are asked for without a loop or a limit, for whose branches Q8_0 of eight rows takes 2 %
//   of its time (Zen 4). What lies behind the last panel is asked for in vain.
constexpr int64_t kStreamAhead = 2048;
struct WeightsAhead {
  const std::byte* at = nullptr;
  int64_t step = 0;  // bytes from part to part, at most a part's

  template <int64_t kPartBytes>
  [[gnu::always_inline]] void Prefetch() {
    constexpr int64_t kLines = (kPartBytes + 63) / 64,
                      kFewLines = (kLines + 1) / 2;  // few: two tiles share it
#pragma GCC unroll 16
    for (int64_t i = 0; i < kFewLines; ++i) _mm_prefetch(at + i * 64, _MM_HINT_T1);
    if (step > kFewLines * 64) {
#pragma GCC unroll 16
      for (int64_t i = kFewLines; i < kLines; ++i) _mm_prefetch(at + i * 64, _MM_HINT_T1);
    }
    at += step;
  }
};

template <typename Format>
constexpr int64_t kPartBytes = Format::kBytes / Format::kParts;

// One row of x: so many panels side by side, as streams of their own, each asking for what lies `ahead`
// behind its part (0: for nothing). Zen 3 by itself fetches four streams better than it fetches any that are
// asked for, as long as a part is little work; Sapphire Rapids wants both
// (docs/measurements/2026-11-30-cpu-instruction-sets.md).
struct RowStreams {
  int panels;
  int64_t ahead;
};

template <typename Format>
constexpr RowStreams RowStreamsOf() {
  if constexpr (requires { Format::kRowStreams; }) {
    return Format::kRowStreams;
  } else {
    return {1, kStreamAhead};
  }
}

template <typename Format, int kRows>
[[gnu::always_inline]] inline void AddPanel(const std::byte* panel, int64_t num_parts,
                                            const typename Format::X* const* x, WeightsAhead ahead,
                                            Sums<typename Format::V, kRows>& sum) {
  for (int64_t b = 0; b < num_parts; panel += Format::kBytes) {
    for (int p = 0; p < Format::kParts; ++p, ++b) {
      ahead.Prefetch<kPartBytes<Format>>();
      Format::template Add<kRows>(panel, p, x, b, sum);
    }
  }
}

template <typename Format, int kRows>
[[gnu::always_inline]] inline void AddExpandedPanel(const std::byte* parts, int64_t num_parts,
                                                    const typename Format::X* const* x, WeightsAhead ahead,
                                                    Sums<typename Format::V, kRows>& sum) {
  for (int64_t b = 0; b < num_parts; ++b, parts += Format::kExpandedBytes) {
    ahead.Prefetch<kPartBytes<Format>>();
    Format::template AddExpanded<kRows>(parts, x, b, sum);
  }
}

// A function of its own: inlined into the loops around it, it finds too few registers and is half as fast.
template <typename Format, bool kExpanded, int kRows>
[[gnu::noinline]] void Tile(const PanelTask& task, const std::byte* panel, int64_t row, int64_t column,
                            const WeightsAhead& ahead) {
  using X = typename Format::X;
  const X* x[kRows];
  Sums<typename Format::V, kRows> sum;
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    x[i] = XRow<X>(task, row + i);
    sum[i] = Format::V::Zero();
  }
  if constexpr (kExpanded) {
    AddExpandedPanel<Format, kRows>(panel, task.k / 32, x, ahead, sum);
  } else {
    AddPanel<Format, kRows>(panel, task.k / 32, x, ahead, sum);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) Format::V::StoreRow(task, row + i, column, sum[i]);
}

// `rows`: 1 to kMaxRows.
template <typename Format, bool kExpanded, int kMaxRows = Format::kTileRows>
void TileOf(int64_t rows, const PanelTask& task, const std::byte* panel, int64_t row, int64_t column,
            const WeightsAhead& ahead) {
  if constexpr (kMaxRows > 1) {
    if (rows < kMaxRows)
      return TileOf<Format, kExpanded, kMaxRows - 1>(rows, task, panel, row, column, ahead);
  }
  Tile<Format, kExpanded, kMaxRows>(task, panel, row, column, ahead);
}

// All rows of x against num_panels panels. A tile's rows are read once for all of them. next: the panels
// after these, perhaps another task's. fresh: it may be that nobody has asked for these panels.
template <typename Format, bool kExpanded>
void RunTiles(const PanelTask& task, const std::byte* panels, int64_t panel_bytes, int64_t num_panels,
              int64_t column, const std::byte* next, int64_t next_bytes, bool fresh) {
  const int64_t num_tiles = NumTiles(task.m, Format::kTileRows), num_parts = task.k / 32;
  const int64_t streaming_tiles = !kExpanded && (task.m == 1 || (fresh && num_tiles > 1)) ? 1 : 0;
  const int64_t sharing = (num_tiles - streaming_tiles) * num_panels;
  const int64_t step = sharing > 0 ? Smaller((next_bytes + sharing * num_parts - 1) / (sharing * num_parts),
                                             kPartBytes<Format>)
                                   : 0;
  const std::byte* asked = step > 0 ? next : panels;
  ForEachTile(task.m, Format::kTileRows, [&](int64_t row, int64_t rows) {
    for (int64_t p = 0; p < num_panels; ++p) {
      WeightsAhead ahead;
      if (row == 0 && streaming_tiles == 1) {
        ahead = {panels + p * panel_bytes + kStreamAhead, kPartBytes<Format>};
      } else {
        ahead = {asked, step};
        asked += step * num_parts;
      }
      TileOf<Format, kExpanded>(rows, task, panels + p * panel_bytes, row, column + p * kPanelRows, ahead);
    }
  });
}

// The only row of x against kPanels panels at once; to the bit what Tile makes of each.
template <typename Format, int kPanels, int64_t kAhead>
[[gnu::noinline]] void RowTile(const PanelTask& task, const std::byte* panels, int64_t column) {
  const int64_t num_parts = task.k / 32;
  const typename Format::X* x[1] = {XRow<typename Format::X>(task, 0)};
  Sums<typename Format::V, 1> sum[kPanels];
#pragma GCC unroll 4
  for (int i = 0; i < kPanels; ++i) sum[i][0] = Format::V::Zero();
  const std::byte* blocks = panels;
  for (int64_t b = 0; b < num_parts; blocks += Format::kBytes) {
    for (int p = 0; p < Format::kParts; ++p, ++b) {
#pragma GCC unroll 4
      for (int i = 0; i < kPanels; ++i) {
        const std::byte* block = blocks + i * task.panel_bytes;
        if constexpr (kAhead > 0) {
#pragma GCC unroll 16
          for (int64_t at = 0; at < kPartBytes<Format>; at += 64) {
            _mm_prefetch(block + p * kPartBytes<Format> + kAhead + at, _MM_HINT_T1);
          }
        }
        Format::template Add<1>(block, p, x, b, sum[i]);
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kPanels; ++i) Format::V::StoreRow(task, 0, column + i * kPanelRows, sum[i][0]);
}

// One row of x against the panels from `first` on, as many as can be side by side; returns the next one.
template <typename Format, int kPanels, int64_t kAhead>
int64_t RunRow(const PanelTask& task, int64_t first) {
  if constexpr (kPanels > 1) {
    for (; first + kPanels <= task.num_panels; first += kPanels) {
      RowTile<Format, kPanels, kAhead>(task, task.panels + first * task.panel_bytes, first * kPanelRows);
    }
    return RunRow<Format, kPanels - 1, kAhead>(task, first);
  }
  return first;
}

// The only row of x against a panel where the processor follows one stream by itself (FollowsOneStream): of each page of
// 4 KB only the first line is asked for, four pages ahead. On Zen 4 two cores so read 48 to 50 GB/s of 53, and 24 to 37
// with every line asked for 2 KB ahead or with panels side by side (same document as above, machine C).
template <typename Format>
[[gnu::noinline]] void RowPanel(const PanelTask& task, const std::byte* panel, int64_t column) {
  constexpr int64_t kPartBytes = Format::kBytes / Format::kParts;
  constexpr uintptr_t kPageBytes = 4096, kPagesAhead = 4;
  const int64_t num_parts = task.k / 32;
  const typename Format::X* x[1] = {XRow<typename Format::X>(task, 0)};
  Sums<typename Format::V, 1> sum = {Format::V::Zero()};
  uintptr_t at = reinterpret_cast<uintptr_t>(panel);
  const auto ask_ahead = [&]() __attribute__((always_inline)) {
    if (at % kPageBytes < kPartBytes) {
      const uintptr_t line = (at / kPageBytes + kPagesAhead) * kPageBytes;
      _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
    }
    at += kPartBytes;
  };
  for (int64_t b = 0; b < num_parts; panel += Format::kBytes) {
    if constexpr (requires { typename Format::RowBlock; }) {
      const typename Format::RowBlock block(panel);
      for (int p = 0; p < Format::kParts; ++p, ++b) {
        ask_ahead();
        Format::AddOfRow(block, panel, p, x, b, sum);
      }
    } else {
      for (int p = 0; p < Format::kParts; ++p, ++b) {
        ask_ahead();
        Format::template Add<1>(panel, p, x, b, sum);
      }
    }
  }
  Format::V::StoreRow(task, 0, column, sum[0]);
}

template <typename Format>
void ExpandPanel(const std::byte* panel, int64_t num_parts, std::byte* out) {
  for (int64_t b = 0; b < num_parts; panel += Format::kBytes) {
    for (int p = 0; p < Format::kParts; ++p, ++b, out += Format::kExpandedBytes)
      Format::Expand(panel, p, out);
  }
}

template <typename Format>
void RunCodes(const PanelTask& task) {
  if (task.m == 1 && FollowsOneStream()) {
    for (int64_t p = 0; p < task.num_panels; ++p) {
      RowPanel<Format>(task, task.panels + p * task.panel_bytes, p * kPanelRows);
    }
    return;
  }
  const int64_t num_parts = task.k / 32, expanded_bytes = num_parts * Format::kExpandedBytes;
  const bool expand =
      Format::kExpandedBytes > 0 && task.m >= kExpandRows && expanded_bytes <= kThreadScratchBytes;
  // As many panels as the first cache holds beside a tile's rows of x.
  const int64_t cached_bytes = expand ? expanded_bytes : task.panel_bytes;
  const int64_t panels_at_once =
      cached_bytes >= kCodePanelCacheBytes ? 1 : kCodePanelCacheBytes / cached_bytes;
  constexpr RowStreams kStreams = RowStreamsOf<Format>();
  const int64_t begin = task.m == 1 ? RunRow<Format, kStreams.panels, kStreams.ahead>(task, 0) : 0;
  for (int64_t first = begin; first < task.num_panels; first += panels_at_once) {
    const int64_t count = Smaller(panels_at_once, task.num_panels - first);
    const std::byte* panels = task.panels + first * task.panel_bytes;
    const std::byte* next = panels + count * task.panel_bytes;
    const int64_t next_bytes = count * task.panel_bytes;
    if (!expand) {
      RunTiles<Format, false>(task, panels, task.panel_bytes, count, first * kPanelRows, next, next_bytes,
                              first == 0);
      continue;
    }
    if constexpr (Format::kExpandedBytes > 0) {
      for (int64_t p = 0; p < count; ++p) {
        ExpandPanel<Format>(panels + p * task.panel_bytes, num_parts, task.scratch + p * expanded_bytes);
      }
      RunTiles<Format, true>(task, task.scratch, expanded_bytes, count, first * kPanelRows, next, next_bytes,
                             first == 0);
    }
  }
}

}  // namespace
}  // namespace cachalot
