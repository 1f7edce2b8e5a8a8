// How the matmul of bulk copies (matmul_bulk.cuh) is cut: tiles of rows of W, and k in one or two parts. Of the shape alone.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cachalot {

inline constexpr int kBulkMostRows = 256;     // of W, of a copy and of an instruction
inline constexpr int kBulkMostColumns = 128;  // rows of x
inline constexpr int kBulkMostStages = 32;
inline constexpr int kBulkSharedBytes = 216 << 10;  // of a block: an SM's, but for a little

struct BulkCut {
  int rows = 0;              // of W, of a tile; 0: another kernel
  int parts = 1;             // of k: blocks of a cluster that share a tile; then a cluster has one tile only
  int columns = 64;          // rows of x of the kernel: 64 or 128
  int x_rows = 0;            // of those, that are copied
  int instruction_rows = 0;  // of W: 64, 128 or 256
  int steps = 0;             // stages of k of a tile
  int stages = 0;            // of the ring
  int stage_bytes = 0;
  int shared_bytes = 0;
  int fold_stride = 0;       // floats from a row of x to the next where parts add up their sums
  int tiles = 0;
  int clusters = 0;          // that run; each takes every so manieth tile
  bool pairs = false;        // y can be written two values at a time
};

// Panels of 64 values of k in a stage: two where four stages of them fit, as 256 bytes of a row come faster than 128.
constexpr int BulkPanels(int instruction_rows, int columns) { return instruction_rows + columns <= 192 ? 2 : 1; }

// What a cut needs beside its rows, parts and clusters. False: it does not fit.
constexpr bool CompleteBulkCut(int64_t m, int64_t n, int64_t k, BulkCut* cut) {
  constexpr int kRowBytes = 128;  // of a panel
  cut->columns = m <= 64 ? 64 : 128;
  cut->x_rows = static_cast<int>((m + 7) / 8 * 8);
  cut->instruction_rows = cut->rows <= 64 ? 64 : cut->rows <= 128 ? 128 : 256;
  const int panels = BulkPanels(cut->instruction_rows, cut->columns);
  cut->steps = static_cast<int>((k + panels * 64 - 1) / (panels * 64));
  cut->stage_bytes = (cut->rows + cut->x_rows) * kRowBytes * panels;
  cut->tiles = static_cast<int>((n + cut->rows - 1) / cut->rows);
  // Instructions read whole operands: behind the last stage there is room for the rows that it has not.
  const int behind = std::max({0, cut->instruction_rows - cut->rows - cut->x_rows * panels, cut->columns - cut->x_rows}) * kRowBytes;
  const int64_t rounds = (cut->tiles + cut->clusters - 1) / cut->clusters;
  const int64_t most = std::min<int64_t>(kBulkMostStages, rounds * (cut->steps / cut->parts));
  cut->stages = static_cast<int>(std::min<int64_t>(most, (kBulkSharedBytes - behind) / cut->stage_bytes));
  cut->fold_stride = (cut->rows + 31) / 32 * 32 + 8;  // 8 rows begin in different banks
  const int fold = cut->parts == 1 ? 0 : static_cast<int>(m) * cut->fold_stride * 4;
  cut->shared_bytes = std::max(cut->stages * cut->stage_bytes + behind, fold);
  return cut->stages >= 2 && cut->shared_bytes <= kBulkSharedBytes && (cut->parts == 1 || rounds == 1);
}

// About how long a cut takes, in ns: as long as the slowest of an SM's share of the bytes of W, what it can take in, and the
// instructions of a few rows; measured on an H200.
constexpr int64_t BulkNanoseconds(int64_t m, int64_t k, int64_t rounds, const BulkCut& cut) {
  const int64_t w_bytes = cut.rows * int64_t{256}, x_bytes = cut.x_rows * int64_t{256};  // of 128 values of k
  const int64_t step = std::max({w_bytes * 10 / 318, (w_bytes + x_bytes) / 79, int64_t{410}}) + x_bytes / 2000;
  const int64_t one_panel = BulkPanels(cut.instruction_rows, cut.columns) == 1 ? step / 100 : 0;
  return rounds * ((k + 127) / 128) / cut.parts * (step + one_panel) + (cut.parts > 1 ? 250 + 12 * m : 0);
}

// The fastest cut; rows 0: too few rows of W for most SMs.
constexpr BulkCut FindBulkCut(int64_t m, int64_t n, int64_t k, bool glu, int num_sms) {
  constexpr int64_t kLeastRows = 24;
  const int64_t step = glu ? 16 : 8;
  BulkCut best;
  int64_t best_time = INT64_MAX;
  for (const int parts : {1, 2}) {
    const int64_t clusters = num_sms / parts;
    for (int64_t rounds = 1; rounds <= (parts == 1 ? 64 : 1); ++rounds) {
      const int64_t each = (n + clusters * rounds - 1) / (clusters * rounds), rows = (each + step - 1) / step * step;
      if (rows < kLeastRows) break;
      if (rows > kBulkMostRows) continue;
      BulkCut cut;
      cut.rows = static_cast<int>(rows);
      cut.parts = parts;
      cut.clusters = static_cast<int>(std::min((n + rows - 1) / rows, clusters));
      if (cut.clusters * parts * 4 < num_sms * 3 || !CompleteBulkCut(m, n, k, &cut)) continue;
      const int64_t time = BulkNanoseconds(m, k, rounds, cut);
      if (time < best_time) best = cut, best_time = time;
    }
  }
  return best;
}

}  // namespace cachalot
