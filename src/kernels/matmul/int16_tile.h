// F16 and BF16 weights against F32 activations, many rows: both sides as 16-bit integers, over V (matmul/tile.h).
//
// A block is 128 of k of one row of W, or of x. It becomes scale * q with a scale of its own such that
// |q of W| <= kWeightNorm and |q of x| <= kInt16XNorm (Euclidean norms) and every q fits 16 bits. By Cauchy and
// Schwarz no sum over any part of a block then leaves 32 bits, and the bound is reached by ordinary blocks,
// which a bound by largest values would waste three bits on. Rounding costs 1.1e-4 of an output's RMS,
// half of what rounding x to F16 does. Integer sums are exact; their blocks are added in F32, in order.
//
// An output still depends on nothing but its rows of x and W, but its bits are not the F32 chain's: matmul.cc takes
// this form by the number of rows, and never with ExecContext::deterministic.
#pragma once

#include "kernels/matmul/float_tile.h"
#include "kernels/matmul/quantize_int16_avx2.h"

namespace cachalot {
namespace {

// 5.7 = sqrt(128) / 2 is what rounding may add to a norm: (32760 + 5.7) * (65530 + 5.7) < 2^31.
constexpr float kWeightNorm = 32760.0f;
static_assert(kInt16Block == 128 && kInt16XNorm == 65530.0f);

// A thread's scratch: a piece of k of a panel as pairs [k/2][16][2], its scales, and sums [row][16].
constexpr int64_t kInt16Piece = 2048;
constexpr int64_t kInt16RowBlock = 1536;
constexpr int64_t kInt16WeightBytes = kInt16Piece * kPanelRows * 2;
constexpr int64_t kInt16ScaleBytes = kInt16Piece / kInt16Block * kPanelRows * 4;
static_assert(kInt16WeightBytes + kInt16ScaleBytes + kInt16RowBlock * kPanelRows * 4 <= kThreadScratchBytes);

// --- W: a piece of a panel. ---

// A block of zeros gets the scale 0 and whatever q; one with a NaN a NaN scale.
template <typename V, typename Weights>
void ConvertInt16(const std::byte* panel, int64_t k_count, std::byte* out, float* scales) {
  using F32 = typename V::F32;
  for (int64_t k0 = 0; k0 < k_count; k0 += kInt16Block, scales += kPanelRows) {
    const int64_t count = Smaller(kInt16Block, k_count - k0);
    const std::byte* steps = panel + k0 * Weights::kStepBytes;
    F32 even = V::Zero(), odd = V::Zero();
    for (int64_t kk = 0; kk < count; kk += 2) {
      const F32 a = Weights::Load(steps + kk * Weights::kStepBytes);
      const F32 b = Weights::Load(steps + (kk + 1) * Weights::kStepBytes);
      even = V::MulAdd(a, a, even);
      odd = V::MulAdd(b, b, odd);
    }
    const F32 norm = V::Sqrt(V::Add(even, odd)), limit = V::Set1(kWeightNorm);
    V::StoreF32(scales, V::Div(norm, limit));
    const F32 factor = V::Div(limit, norm);
    for (int64_t kk = 0; kk < count; kk += 2, out += kPanelRows * 4) {
      const F32 a = Weights::Load(steps + kk * Weights::kStepBytes);
      const F32 b = Weights::Load(steps + (kk + 1) * Weights::kStepBytes);
      V::StoreWords(out, V::RoundPairs(V::Mul(a, factor), V::Mul(b, factor)));
    }
  }
}

// --- A tile: kRows rows of x against a piece of a panel. ---

template <typename V, int kRows>
void Int16Tile(const PanelTask& task, const std::byte* weights, const float* scales, int64_t row,
               int64_t k_begin, int64_t k_count, float* sums) {
  const int16_t* x[kRows];
#pragma GCC unroll 32
  for (int i = 0; i < kRows; ++i) x[i] = XRow<int16_t>(task, row + i) + k_begin;
  // The scales of x stand behind its row.
  const int64_t to_scales = (task.k - k_begin) * 2 + k_begin / kInt16Block * 4;
  for (int64_t k0 = 0, block = 0; k0 < k_count; k0 += kInt16Block, ++block, scales += kPanelRows) {
    typename V::Words sum[kRows];
#pragma GCC unroll 32
    for (int i = 0; i < kRows; ++i) sum[i] = V::ZeroWords();
    const int64_t end = Smaller(k0 + kInt16Block, k_count);
    for (int64_t kk = k0; kk < end; kk += 2, weights += kPanelRows * 4) {
      const typename V::Words w = V::LoadWords(weights);
#pragma GCC unroll 32
      for (int i = 0; i < kRows; ++i) V::AddProducts(w, x[i] + kk, &sum[i]);
    }
    const typename V::F32 scale = V::LoadF32(scales);
#pragma GCC unroll 32
    for (int i = 0; i < kRows; ++i) {
      const float* x_scale = reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(x[i]) + to_scales);
      float* at = sums + i * kPanelRows;
      V::StoreF32(at, V::Fma(V::Broadcast(x_scale + block), V::Mul(V::ToF32(sum[i]), scale), V::LoadF32(at)));
    }
  }
}

template <typename V, int kRows>
void Int16TileRow(const PanelTask& task, const std::byte* weights, const float* scales, int64_t row, int64_t rows,
                  int64_t k_begin, int64_t k_count, float* sums) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return Int16TileRow<V, kRows - 1>(task, weights, scales, row, rows, k_begin, k_count, sums);
    }
  }
  Int16Tile<V, kRows>(task, weights, scales, row, k_begin, k_count, sums);
}

template <typename V, int kRows, template <typename> typename WeightsOver>
void RunInt16(const PanelTask& task) {
  using Weights = WeightsOver<V>;
  std::byte* weights = task.scratch;
  float* scales = reinterpret_cast<float*>(weights + kInt16WeightBytes);
  float* sums = scales + kInt16ScaleBytes / 4;
  for (int64_t p = 0; p < task.num_panels; ++p) {
    const std::byte* panel = task.panels + p * task.panel_bytes;
    for (int64_t row0 = 0; row0 < task.m; row0 += kInt16RowBlock) {
      const int64_t rows_here = Smaller(kInt16RowBlock, task.m - row0);
      for (int64_t i = 0; i < rows_here; ++i) V::StoreF32(sums + i * kPanelRows, V::Zero());
      for (int64_t k0 = 0; k0 < task.k; k0 += kInt16Piece) {
        const int64_t k_count = Smaller(kInt16Piece, task.k - k0);
        ConvertInt16<V, Weights>(panel + k0 * Weights::kStepBytes, k_count, weights, scales);
        ForEachTile(rows_here, kRows, [&](int64_t row, int64_t rows) {
          Int16TileRow<V, kRows>(task, weights, scales, row0 + row, rows, k0, k_count, sums + row * kPanelRows);
        });
      }
      for (int64_t i = 0; i < rows_here; ++i) {
        V::StoreRow(task, row0 + i, p * kPanelRows, V::LoadF32(sums + i * kPanelRows));
      }
    }
  }
}

}  // namespace
}  // namespace cachalot
