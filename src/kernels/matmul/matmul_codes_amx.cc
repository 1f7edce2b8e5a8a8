// Block formats against activations rounded to 8 bits, many rows, AMX: the sums of matmul_codes_avx512.cc, to
// the bit (exact integers over 32 of k, or over both 16, then the same F32 chain). Fewer rows run there.
//
// Bounds, for 16 rows x 16 columns x 32 of k: the product of two tiles takes 16 cycles (a scale for each 16:
// two of them); its integers come back through the cache, 16 stores and 16 loads; three F32 instructions a
// row (four with minima, six with a scale for each 16) take 24 cycles of two ports. So it is the F32 chain
// that limits, at about a third of VNNI's time. Products are started four ahead of the chain that takes them.
//
// A panel's codes are expanded once, to signed bytes: then nothing has to be subtracted from the sums. k goes
// in chunks that stay in the first cache while the rows pass by; a tile's chains wait in scratch in between.
#include <immintrin.h>

#include "kernels/matmul/codes_avx512.h"
#include "kernels/matmul/codes_tile.h"

namespace cachalot {
namespace {

using V = Avx512Lanes;

constexpr int kTileRows = 16;
constexpr int kAhead = 4;  // products under way: tiles 0 .. 3
constexpr int64_t kChunkParts = 16;
constexpr int64_t kBlockTiles = 64;  // tiles of rows whose chains wait together
constexpr int64_t kWaitingBytes = kBlockTiles * kTileRows * kPanelRows * static_cast<int64_t>(sizeof(float));

// The shape of the eight tiles: 0 .. 3 sums, 4 and 5 rows of x, 6 and 7 quads of w.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// For products over `quads` quads of k.
inline void ConfigureTiles(int quads) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.rows[i] = static_cast<uint8_t>(i < 6 ? kTileRows : quads);
    config.row_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? 4 * quads : 64);
  }
  _tile_loadconfig(&config);
}

// Rows of x of a tile: row i at rows + i * stride.
struct TileX {
  const std::byte* rows;
  int64_t stride;
  const XBlockSums& Block(int i, int64_t b) const {
    return *reinterpret_cast<const XBlockSums*>(rows + i * stride +
                                                b * static_cast<int64_t>(sizeof(XBlockSums)));
  }
};

// sum[i] += products[i] * (scale * x's scale), products [16][16].
template <typename Numbers>
[[gnu::always_inline]] inline void AddScaled(Numbers&& numbers, __m512 w_scale, const TileX& x, int64_t b,
                                             __m512 (&sum)[kTileRows]) {
#pragma GCC unroll 16
  for (int i = 0; i < kTileRows; ++i) {
    const __m512 both = _mm512_mul_ps(w_scale, V::Broadcast(&x.Block(i, b).scale));
    sum[i] = _mm512_fmadd_ps(numbers(i), both, sum[i]);
  }
}

// [16][16] sums of products, as stored.
struct alignas(64) Dots {
  int32_t values[kTileRows * kPanelRows];
  __m512 F32(int i) const { return _mm512_cvtepi32_ps(_mm512_loadu_si512(values + i * kPanelRows)); }
};

// --- One scale for 32. ---

template <typename Layout, typename As = AsCodes<Layout>>
struct Products32 : Layout {
  static constexpr int kCentre = As::kCentre;
  static constexpr int kProducts = 1;  // in a part
  static constexpr int64_t kPartBytes = kExpandedCodeBytes + (Layout::kHasMin ? 128 : 64);

  static void Expand(const std::byte* block, int p, std::byte* out) {
    for (int s = 0; s < 8; ++s) {
      V::StoreBytes(out + s * 64, _mm512_sub_epi8(As::Code(Layout::CodesOf(block, p), s),
                                                  _mm512_set1_epi8(static_cast<char>(kCentre))));
    }
    V::StoreF32(out + kExpandedCodeBytes, Layout::template Scale<V>(block, p));
    if constexpr (Layout::kHasMin) {
      V::StoreF32(out + kExpandedCodeBytes + 64, Layout::template Min<V>(block, p));
    }
  }

  [[gnu::always_inline]] static void AddPart(const Dots* dots, const std::byte* part, const TileX& x,
                                             int64_t b, __m512 (&sum)[kTileRows]) {
    AddScaled(
        [&](int i) __attribute__((always_inline)) { return dots->F32(i); },
        V::LoadF32(part + kExpandedCodeBytes), x, b, sum);
    if constexpr (Layout::kHasMin) {
      const __m512 w_min = V::LoadF32(part + kExpandedCodeBytes + 64);
#pragma GCC unroll 16
      for (int i = 0; i < kTileRows; ++i) {
        sum[i] = _mm512_fmadd_ps(w_min, V::Broadcast(&x.Block(i, b).sum), sum[i]);
      }
    }
  }
};

// --- An integer scale for each 16. ---

template <typename Layout>
struct Products16 : Layout {
  static constexpr int kCentre = Layout::kCentre;
  static constexpr int kProducts = 2;
  static constexpr int64_t kScalesAt = kExpandedCodeBytes, kMinsAt = kScalesAt + 192;
  static constexpr int64_t kPartBytes = kMinsAt + (Layout::kHasMin ? 128 : 0);

  static void Expand(const std::byte* block, int p, std::byte* out) {
    for (int s = 0; s < 8; ++s) {
      V::StoreBytes(out + s * 64, _mm512_sub_epi8(Codes<V, Layout::kBits>(Layout::CodesOf(block, p), s),
                                                  _mm512_set1_epi8(static_cast<char>(kCentre))));
    }
    V::StoreF32(out + kScalesAt, V::FromI8(Layout::Scale16(block, p, 0)));
    V::StoreF32(out + kScalesAt + 64, V::FromI8(Layout::Scale16(block, p, 1)));
    V::StoreF32(out + kScalesAt + 128, Layout::template Factor<V>(block));
    if constexpr (Layout::kHasMin) {
      V::StoreBytes(out + kMinsAt, WordPairs(Layout::Min16(block, p, 0), Layout::Min16(block, p, 1)));
      V::StoreF32(out + kMinsAt + 64, Layout::template MinFactor<V>(block));
    }
  }

  [[gnu::always_inline]] static void AddPart(const Dots* dots, const std::byte* part, const TileX& x,
                                             int64_t b, __m512 (&sum)[kTileRows]) {
    const __m512 first = V::LoadF32(part + kScalesAt), second = V::LoadF32(part + kScalesAt + 64);
    AddScaled(
        [&](int i) __attribute__((always_inline)) {
          return _mm512_fmadd_ps(dots[1].F32(i), second, _mm512_mul_ps(dots[0].F32(i), first));
        },
        V::LoadF32(part + kScalesAt + 128), x, b, sum);
    if constexpr (Layout::kHasMin) {
      const __m512i mins = V::LoadBytes(part + kMinsAt);
      AddScaled(
          [&](int i) __attribute__((always_inline)) {
            return _mm512_cvtepi32_ps(_mm512_madd_epi16(mins, BroadcastSums(x.Block(i, b))));
          },
          V::LoadF32(part + kMinsAt + 64), x, b, sum);
    }
  }

  static __m512i BroadcastSums(const XBlockSums& block) {
    int32_t both;
    __builtin_memcpy(&both, block.sums, sizeof(both));
    return _mm512_set1_epi32(both);
  }
};

// --- A tile of 16 rows against a chunk of a panel. ---

// Product kIndex of those under way, by its own registers; instructions name them, so each is written out.
template <int kIndex>
[[gnu::always_inline]] inline void Product(const std::byte* x, int64_t stride, const std::byte* quads,
                                           Dots* out) {
  if constexpr (kIndex == 0) {
    _tile_loadd(4, x, stride);
    _tile_loadd(6, quads, 64);
    _tile_zero(0);
    _tile_dpbssd(0, 4, 6);
    _tile_stored(0, out->values, 64);
  } else if constexpr (kIndex == 1) {
    _tile_loadd(5, x, stride);
    _tile_loadd(7, quads, 64);
    _tile_zero(1);
    _tile_dpbssd(1, 5, 7);
    _tile_stored(1, out->values, 64);
  } else if constexpr (kIndex == 2) {
    _tile_loadd(4, x, stride);
    _tile_loadd(6, quads, 64);
    _tile_zero(2);
    _tile_dpbssd(2, 4, 6);
    _tile_stored(2, out->values, 64);
  } else {
    _tile_loadd(5, x, stride);
    _tile_loadd(7, quads, 64);
    _tile_zero(3);
    _tile_dpbssd(3, 5, 7);
    _tile_stored(3, out->values, 64);
  }
}

// The products of `parts` parts from part b of x, whose expanded form is at `expanded`.
template <typename Format>
[[gnu::always_inline]] inline void StartProducts(const TileX& x, int64_t b, const std::byte* expanded,
                                                 int64_t parts, Dots* dots) {
  const auto start = [&]<int kIndex>() __attribute__((always_inline)) {
    constexpr int kPart = kIndex / Format::kProducts, kHalf = kIndex % Format::kProducts;
    if (kPart >= parts) return;
    Product<kIndex>(x.rows + (b + kPart) * static_cast<int64_t>(sizeof(XBlockSums)) + kHalf * 16, x.stride,
                    expanded + kPart * Format::kPartBytes + kHalf * 256, dots + kIndex);
  };
  start.template operator()<0>();
  start.template operator()<1>();
  start.template operator()<2>();
  start.template operator()<3>();
}

struct Chunk {
  int64_t first_part, num_parts;
  const std::byte* expanded;  // of the chunk
  bool first, last;           // chains start at zero; are finished
};

// Adds a chunk to the chains of a tile; those of the first `skip` rows are another tile's.
template <typename Format>
[[gnu::noinline]] void RunTile(const PanelTask& task, const Chunk& chunk, const TileX& x, int64_t row,
                               int skip, int64_t column, float* waiting) {
  constexpr int64_t kGroup = kAhead / Format::kProducts;  // parts
  Dots dots[2][kAhead];
  __m512 sum[kTileRows];
#pragma GCC unroll 16
  for (int i = 0; i < kTileRows; ++i) {
    sum[i] = chunk.first ? _mm512_setzero_ps() : _mm512_loadu_ps(waiting + i * kPanelRows);
  }
  StartProducts<Format>(x, chunk.first_part, chunk.expanded, chunk.num_parts, dots[0]);
  for (int64_t p = 0; p < chunk.num_parts; p += kGroup) {
    const int64_t next = p + kGroup;
    StartProducts<Format>(x, chunk.first_part + next, chunk.expanded + next * Format::kPartBytes,
                          chunk.num_parts - next, dots[next / kGroup % 2]);
    const Dots* ready = dots[p / kGroup % 2];
    for (int64_t j = p; j < Smaller(next, chunk.num_parts); ++j, ready += Format::kProducts) {
      Format::AddPart(ready, chunk.expanded + j * Format::kPartBytes, x, chunk.first_part + j, sum);
    }
  }
  if (!chunk.last) {
#pragma GCC unroll 16
    for (int i = 0; i < kTileRows; ++i) _mm512_storeu_ps(waiting + i * kPanelRows, sum[i]);
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kTileRows; ++i) {
    if (i >= skip) V::StoreRow(task, row + i, column, sum[i]);
  }
}

// --- A task. ---

const PanelKernel& FewRowsKernel(DType dtype) {
  const PanelKernel* found = nullptr;
  for (const PanelKernel& kernel : CodesKernelsAvx512()) {
    if (kernel.dtype == dtype) found = &kernel;
  }
  return *found;
}

// The rows of x one after the other: as they are, or gathered.
TileX RowsOf(const PanelTask& task, std::byte* gathered) {
  if (task.x_rows == nullptr) return {task.x, task.x_stride_bytes};
  for (int64_t i = 0; i < task.m; ++i) {
    __builtin_memcpy(gathered + i * task.x_stride_bytes, XRow<std::byte>(task, i), task.x_stride_bytes);
  }
  return {gathered, task.x_stride_bytes};
}

template <typename Format, DType kType>
void RunProducts(const PanelTask& task) {
  const int64_t num_parts = task.k / 32, expanded_bytes = num_parts * Format::kPartBytes;
  const int64_t gathered_bytes = task.x_rows != nullptr ? task.m * task.x_stride_bytes : 0;
  if (task.m < kTileRows || kWaitingBytes + expanded_bytes + gathered_bytes > kThreadScratchBytes) {
    return FewRowsKernel(kType).run(task);
  }
  float* waiting = reinterpret_cast<float*>(task.scratch);
  std::byte* expanded = task.scratch + kWaitingBytes;
  const TileX x = RowsOf(task, expanded + expanded_bytes);
  const int64_t num_tiles = NumTiles(task.m, kTileRows), num_chunks = NumTiles(num_parts, kChunkParts);
  const int64_t share = (task.panel_bytes + num_tiles * num_chunks - 1) / (num_tiles * num_chunks);
  ConfigureTiles(8 / Format::kProducts);
  for (int64_t panel = 0; panel < task.num_panels; ++panel) {
    const std::byte* block = task.panels + panel * task.panel_bytes;
    for (int64_t b = 0; b < num_parts; block += Format::kBytes) {
      for (int p = 0; p < Format::kParts; ++p, ++b)
        Format::Expand(block, p, expanded + b * Format::kPartBytes);
    }
    asm volatile("" : : : "memory");  // GCC 12's tile loads do not say that they read memory
    // Each tile asks for its share of the next panel: memory would rest meanwhile.
    const std::byte* ahead = task.panels + (panel + 1) * task.panel_bytes;
    const std::byte* const end = panel + 1 < task.num_panels ? ahead + task.panel_bytes : ahead;
    for (int64_t first = 0; first < num_tiles; first += kBlockTiles) {
      for (int64_t c = 0; c < num_chunks; ++c) {
        const int64_t begin = num_parts * c / num_chunks, stop = num_parts * (c + 1) / num_chunks;
        const Chunk chunk = {.first_part = begin,
                             .num_parts = stop - begin,
                             .expanded = expanded + begin * Format::kPartBytes,
                             .first = c == 0,
                             .last = c + 1 == num_chunks};
        for (int64_t t = first; t < Smaller(first + kBlockTiles, num_tiles); ++t) {
          for (int64_t i = 0; i < share && ahead < end; i += 64, ahead += 64)
            _mm_prefetch(ahead, _MM_HINT_T1);
          // The last tile ends with the last row; what it shares with the one before it stores once.
          const int64_t row = Smaller(t * kTileRows, task.m - kTileRows);
          RunTile<Format>(task, chunk, {x.rows + row * x.stride, x.stride}, row,
                          static_cast<int>(t * kTileRows - row), panel * kPanelRows,
                          waiting + (t - first) * kTileRows * kPanelRows);
        }
      }
    }
  }
  _tile_release();
}

template <typename Layout, DType kType, typename As = AsCodes<Layout>>
constexpr PanelKernel Kernel32() {
  using Format = Products32<Layout, As>;
  return {kType, Isa::kAmx, RunProducts<Format, kType>, Quantize32<Format::kCentre>, sizeof(XBlockSums)};
}
template <typename Layout, DType kType>
constexpr PanelKernel Kernel16() {
  using Format = Products16<Layout>;
  return {kType, Isa::kAmx, RunProducts<Format, kType>, Quantize16<Format::kCentre>, sizeof(XBlockSums)};
}

constexpr PanelKernel kKernels[] = {
    Kernel32<BlockQ8_0, DType::kQ8_0, AsSignedBytes>(),
    Kernel32<BlockQ4_0, DType::kQ4_0>(),
    Kernel32<BlockQ4_1, DType::kQ4_1>(),
    Kernel32<BlockQ5_0, DType::kQ5_0>(),
    Kernel32<BlockQ5_1, DType::kQ5_1>(),
    Kernel32<BlockIQ4_NL, DType::kIQ4_NL, AsLevels>(),
    Kernel32<BlockQ4_K, DType::kQ4_K>(),
    Kernel32<BlockQ5_K, DType::kQ5_K>(),
    Kernel32<BlockIQ4_XS, DType::kIQ4_XS, AsLevels>(),
    Kernel16<BlockQ2_K, DType::kQ2_K>(),
    Kernel16<BlockQ3_K, DType::kQ3_K>(),
    Kernel16<BlockQ6_K, DType::kQ6_K>(),
};

}  // namespace

std::span<const PanelKernel> CodesKernelsAmx() {
  return kKernels;
}

}  // namespace cachalot
