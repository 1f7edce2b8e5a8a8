// What the SIMD panel kernels of all instruction sets share: row pointers and how rows are cut into tiles.
//
// Templates here and in float_tile.h, code_layouts.h and codes_tile.h are written once over `V`, the sixteen
// lanes that are a panel's rows (lanes_avx2.h: two registers; lanes_avx512.h: one). The order of operations
// on a lane is the template's, so the instruction sets agree to the bit.
//
// All of it for *_avx2.cc and *_avx512.cc files only, in namespaces without a name: no copy compiled for a
// newer CPU can then be picked by the linker for an older one.
#pragma once

#include "kernels/matmul/panel.h"
#include "kernels/matmul/panel_kernels.h"

namespace cachalot {
namespace {

inline int64_t Smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

inline int64_t NumTiles(int64_t count, int64_t most) {
  return (count + most - 1) / most;
}

// Cuts `count` rows into tiles of at most `most`, of nearly equal height.
template <typename Fn>
inline void ForEachTile(int64_t count, int64_t most, Fn&& fn) {
  const int64_t tiles = NumTiles(count, most);
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t begin = count * t / tiles;
    fn(begin, count * (t + 1) / tiles - begin);
  }
}

template <typename T>
inline const T* XRow(const PanelTask& task, int64_t i) {
  return reinterpret_cast<const T*>(task.x +
                                    (task.x_rows != nullptr ? task.x_rows[i] : i) * task.x_stride_bytes);
}

inline float* YRow(const PanelTask& task, int64_t i) {
  return task.y + (task.y_rows != nullptr ? task.y_rows[i] : i) * task.y_stride;
}

}  // namespace
}  // namespace cachalot
