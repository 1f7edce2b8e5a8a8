// What the AVX2 panel kernels share: row pointers and the way a finished tile reaches y. For *_avx2.cc files
// only; everything is `static`, so that no copy compiled for a newer CPU can be picked by the linker for an
// older one.
#pragma once

#include <immintrin.h>

#include "kernels/matmul/panel_kernels.h"

namespace cachalot {

static inline int64_t Smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static inline int64_t NumTiles(int64_t count, int64_t most) {
  return (count + most - 1) / most;
}

// Cuts `count` rows into tiles of at most `most`, of nearly equal height.
template <typename Fn>
static inline void ForEachTile(int64_t count, int64_t most, Fn&& fn) {
  const int64_t tiles = NumTiles(count, most);
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t begin = count * t / tiles;
    fn(begin, count * (t + 1) / tiles - begin);
  }
}

template <typename T>
static inline const T* XRow(const PanelTask& task, int64_t i) {
  return reinterpret_cast<const T*>(task.x +
                                    (task.x_rows != nullptr ? task.x_rows[i] : i) * task.x_stride_bytes);
}

// All ones in the lanes whose column is below `count`; lane 0 is column `first`.
static inline __m256i ColumnMask(int64_t first, int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count - first)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline void StoreLanes(const PanelTask& task, int64_t i, int64_t column, __m256 value) {
  float* y = task.y + (task.y_rows != nullptr ? task.y_rows[i] : i) * task.y_stride + column;
  if (column + 8 <= task.num_columns) {
    if (task.bias != nullptr) value = _mm256_add_ps(value, _mm256_loadu_ps(task.bias + column));
    if (task.row_scale != nullptr) value = _mm256_mul_ps(value, _mm256_set1_ps(task.row_scale[i]));
    if (task.accumulate) value = _mm256_add_ps(_mm256_loadu_ps(y), value);
    _mm256_storeu_ps(y, value);
  } else if (column < task.num_columns) {
    const __m256i mask = ColumnMask(column, task.num_columns);
    if (task.bias != nullptr) value = _mm256_add_ps(value, _mm256_maskload_ps(task.bias + column, mask));
    if (task.row_scale != nullptr) value = _mm256_mul_ps(value, _mm256_set1_ps(task.row_scale[i]));
    if (task.accumulate) value = _mm256_add_ps(_mm256_maskload_ps(y, mask), value);
    _mm256_maskstore_ps(y, mask, value);
  }
}

// 16 columns from `column` (a panel's first) of row i of y.
static inline void StoreTileRow(const PanelTask& task, int64_t i, int64_t column, __m256 low, __m256 high) {
  StoreLanes(task, i, column, low);
  StoreLanes(task, i, column + 8, high);
}

}  // namespace cachalot
