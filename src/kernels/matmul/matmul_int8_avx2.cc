// Q8_0, Q4_0 and Q4_1 weights against activations rounded to 8 bits: exact integer dot products of 32 values,
// then one F32 chain over the blocks for each output: sum = fma(integer dot, w's scale * x's scale, sum), for
// Q4_1 followed by sum = fma(w's minimum, x's scale * sum of q, sum).
//
// Bounds: a byte multiply-add is 32 products and two start in a cycle, twice the FMA's rate.
//   4 bits: w is 0..15, so a lane of 16 bits holds the products of a whole block (16 * 15 * 127 < 2^15) and
//   only the
//     block's end is widened: one multiply-add, one addition and half a broadcast load for 32 products. A
//     tile of 4 rows x 16 columns shares each broadcast between two vectors of w.
//   8 bits: |w| times x with w's sign: two products fit 16 bits (2 * 128 * 127 < 2^15), so each is widened at
//   once.
//     Four instructions for 32 products; half the speed of the 4-bit form and still 1.4 times the FMAs'.
// Few rows: memory is the limit, and all of this hides behind it.
#include <immintrin.h>

#include "kernels/matmul/panel.h"
#include "kernels/matmul/quantize_x_avx2.h"
#include "kernels/matmul/tile_avx2.h"

namespace cachalot {
namespace {

constexpr int64_t kTileRows = 4;
constexpr int64_t kPanelCacheBytes = 20 << 10;

// Keeps the additions in the order written: reassociated, they need more registers than there are.
inline void Pin(__m256i& value) {
  asm("" : "+x"(value));
}

inline __m256i Load(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline __m256 LoadF16(const std::byte* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline __m256i Broadcast4(const void* p) {
  return _mm256_castps_si256(_mm256_broadcast_ss(static_cast<const float*>(p)));
}

// --- One block of 32 of k: integer dot products of kRows rows of x with 16 rows of w, as F32. ---

template <int kRows>
using Dots = __m256[kRows][2];

struct BlockQ8_0Panel {
  static constexpr int64_t kBytes = 544;
  static constexpr bool kHasMin = false;

  template <int kRows>
  static void Dot(const std::byte* block, const XBlock* const* x, int64_t b, Dots<kRows>& dots) {
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i sum[kRows];
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) sum[i] = _mm256_setzero_si256();
#pragma GCC unroll 2
      for (int quad = 0; quad < 8; ++quad) {
        const __m256i w = Load(block + 32 + quad * 64 + half * 32);
        const __m256i magnitude = _mm256_abs_epi8(w);
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) {
          const __m256i signed_x = _mm256_sign_epi8(Broadcast4(x[i][b].q + quad * 4), w);
          sum[i] =
              _mm256_add_epi32(sum[i], _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, signed_x), ones));
          Pin(sum[i]);
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) dots[i][half] = _mm256_cvtepi32_ps(sum[i]);
    }
  }
};

// kScaleBytes: 32 (scales) or 64 (scales and minima) in front of the nibbles.
template <int64_t kHeadBytes, int kRows, typename Start>
inline void DotNibbles(const std::byte* block, const XBlock* const* x, int64_t b, Dots<kRows>& dots,
                       Start&& start) {
  const __m256i low_half = _mm256_set1_epi8(0xf);
  __m256i sum[kRows][2];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) sum[i][0] = sum[i][1] = start(x[i][b]);
#pragma GCC unroll 2
  for (int quad = 0; quad < 4; ++quad) {
    const __m256i bytes0 = Load(block + kHeadBytes + quad * 64);
    const __m256i bytes1 = Load(block + kHeadBytes + quad * 64 + 32);
    __m256i w0 = _mm256_and_si256(bytes0, low_half), w1 = _mm256_and_si256(bytes1, low_half);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m256i xv = Broadcast4(x[i][b].q + quad * 4);
      sum[i][0] = _mm256_add_epi16(sum[i][0], _mm256_maddubs_epi16(w0, xv));
      sum[i][1] = _mm256_add_epi16(sum[i][1], _mm256_maddubs_epi16(w1, xv));
      Pin(sum[i][0]);
      Pin(sum[i][1]);
    }
    w0 = _mm256_and_si256(_mm256_srli_epi16(bytes0, 4), low_half);
    w1 = _mm256_and_si256(_mm256_srli_epi16(bytes1, 4), low_half);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m256i xv = Broadcast4(x[i][b].q + 16 + quad * 4);
      sum[i][0] = _mm256_add_epi16(sum[i][0], _mm256_maddubs_epi16(w0, xv));
      sum[i][1] = _mm256_add_epi16(sum[i][1], _mm256_maddubs_epi16(w1, xv));
      Pin(sum[i][0]);
      Pin(sum[i][1]);
    }
  }
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    dots[i][0] = _mm256_cvtepi32_ps(_mm256_madd_epi16(sum[i][0], ones));
    dots[i][1] = _mm256_cvtepi32_ps(_mm256_madd_epi16(sum[i][1], ones));
  }
}

struct BlockQ4_0Panel {
  static constexpr int64_t kBytes = 288;
  static constexpr bool kHasMin = false;

  template <int kRows>
  static void Dot(const std::byte* block, const XBlock* const* x, int64_t b, Dots<kRows>& dots) {
    DotNibbles<32, kRows>(block, x, b, dots, [](const XBlock& xb) { return Broadcast4(xb.start); });
  }
};

struct BlockQ4_1Panel {
  static constexpr int64_t kBytes = 320;
  static constexpr bool kHasMin = true;

  template <int kRows>
  static void Dot(const std::byte* block, const XBlock* const* x, int64_t b, Dots<kRows>& dots) {
    DotNibbles<64, kRows>(block, x, b, dots, [](const XBlock&) { return _mm256_setzero_si256(); });
  }
};

// --- A tile: kRows rows of x against a panel. ---

template <typename Block, int kRows>
void Tile(const PanelTask& task, const std::byte* panel, int64_t row, int64_t column) {
  const XBlock* x[kRows];
  __m256 sum[kRows][2];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    x[i] = XRow<XBlock>(task, row + i);
    sum[i][0] = sum[i][1] = _mm256_setzero_ps();
  }
  const int64_t num_blocks = task.k / 32;
  for (int64_t b = 0; b < num_blocks; ++b, panel += Block::kBytes) {
    Dots<kRows> dots;
    Block::template Dot<kRows>(panel, x, b, dots);
    const __m256 scale0 = LoadF16(panel), scale1 = LoadF16(panel + 16);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m256 x_scale = _mm256_broadcast_ss(&x[i][b].scale);
      sum[i][0] = _mm256_fmadd_ps(dots[i][0], _mm256_mul_ps(scale0, x_scale), sum[i][0]);
      sum[i][1] = _mm256_fmadd_ps(dots[i][1], _mm256_mul_ps(scale1, x_scale), sum[i][1]);
    }
    if constexpr (Block::kHasMin) {
      const __m256 min0 = LoadF16(panel + 32), min1 = LoadF16(panel + 48);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const __m256 x_sum = _mm256_broadcast_ss(&x[i][b].sum);
        sum[i][0] = _mm256_fmadd_ps(min0, x_sum, sum[i][0]);
        sum[i][1] = _mm256_fmadd_ps(min1, x_sum, sum[i][1]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) StoreTileRow(task, row + i, column, sum[i][0], sum[i][1]);
}

template <typename Block>
void TileRow(const PanelTask& task, int64_t first_panel, int64_t num_panels, int64_t row, int64_t rows) {
  for (int64_t p = first_panel; p < first_panel + num_panels; ++p) {
    const std::byte* panel = task.panels + p * task.panel_bytes;
    switch (rows) {
      case 1:
        Tile<Block, 1>(task, panel, row, p * kPanelRows);
        break;
      case 2:
        Tile<Block, 2>(task, panel, row, p * kPanelRows);
        break;
      case 3:
        Tile<Block, 3>(task, panel, row, p * kPanelRows);
        break;
      default:
        Tile<Block, 4>(task, panel, row, p * kPanelRows);
        break;
    }
  }
}

template <typename Block>
void Run(const PanelTask& task) {
  // As many panels as the first cache holds beside a tile's rows of x: those are then read once for all of
  // them.
  const int64_t panels_at_once =
      task.panel_bytes >= kPanelCacheBytes ? 1 : kPanelCacheBytes / task.panel_bytes;
  for (int64_t p = 0; p < task.num_panels; p += panels_at_once) {
    const int64_t panels = Smaller(panels_at_once, task.num_panels - p);
    for (int64_t row = 0; row < task.m; row += kTileRows) {
      TileRow<Block>(task, p, panels, row, Smaller(kTileRows, task.m - row));
    }
  }
}

// --- Activations. ---

// 8 lanes of 32 bits to one.
inline __m128i AddHalves(__m256i v) {
  return _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

void QuantizeForQ8_0(const float* x, int64_t k, std::byte* out) {
  QuantizeX<XBlock>(x, k, out, [](__m256i, XBlock* block) { block->sum = 0; });
}

void QuantizeForQ4_0(const float* x, int64_t k, std::byte* out) {
  QuantizeX<XBlock>(x, k, out, [](__m256i q, XBlock* block) {
    // 16-bit lanes: even ones hold q[4j] + q[4j+1], odd ones q[4j+2] + q[4j+3].
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    __m128i sum = _mm_add_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    sum = _mm_add_epi16(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(1, 0, 3, 2)));
    sum = _mm_add_epi16(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(2, 3, 0, 1)));
    const int start = _mm_cvtsi128_si32(_mm_slli_epi16(_mm_sub_epi16(_mm_setzero_si128(), sum), 3));
    __builtin_memcpy(block->start, &start, sizeof(start));
  });
}

void QuantizeForQ4_1(const float* x, int64_t k, std::byte* out) {
  QuantizeX<XBlock>(x, k, out, [](__m256i q, XBlock* block) {
    const __m256i quads =
        _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
    __m128i sum = AddHalves(quads);
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(1, 0, 3, 2)));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(2, 3, 0, 1)));
    block->sum = block->scale * static_cast<float>(_mm_cvtsi128_si32(sum));
  });
}

constexpr PanelKernel kKernels[] = {
    {DType::kQ8_0, Isa::kAvx2, Run<BlockQ8_0Panel>, QuantizeForQ8_0, sizeof(XBlock)},
    {DType::kQ4_0, Isa::kAvx2, Run<BlockQ4_0Panel>, QuantizeForQ4_0, sizeof(XBlock)},
    {DType::kQ4_1, Isa::kAvx2, Run<BlockQ4_1Panel>, QuantizeForQ4_1, sizeof(XBlock)},
};

}  // namespace

std::span<const PanelKernel> Int8KernelsAvx2() {
  return kKernels;
}

}  // namespace cachalot
