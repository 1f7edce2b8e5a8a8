// Rows of GGUF codes of 2 to 6 bits in device memory, and the arithmetic from their bits to values: what every kernel that
// reads them shares. nvcc compiles it for the kernels, the host's compiler for code_rows_test.cc, which compares every format
// with quant/<format>.h bit for bit.
//
// A row is up to four planes, each padded to 16 bytes: codes, high bits, records (what scales 256 values), tops. All bits of
// the file are there and hardly one more (Q3_K: 112 bytes of 256 values for 110); they only lie where loads are of 16 bytes
// and tensor cores want them. A chunk is 128 values in four blocks of 32; lane q of the four lanes that multiply a row has
// values 4q .. 4q + 3 and 16 + 4q .. 16 + 4q + 3 of each block b, and finds them in words of its own:
//   codes of 4 bits   16 bytes a lane, word b:      value 4q + i at bits 8i, value 16 + 4q + i at bits 8i + 4
//   codes of 2 bits    8 bytes a lane, word b / 2:  the same, 2 (b % 2) bits further up
//   high bits, two     8 bytes a lane, word b / 2:  as codes of 2 bits
//   high bits, one     4 bytes a lane:              the same, b bits further up
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matmul/matmul_cuda.h"
#include "tensor/float_convert.h"

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#define CACHALOT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define CACHALOT_HOST_DEVICE inline
#endif

namespace cachalot {

// Of a chunk of a row: what a kernel loads, and where.
template <DType kType>
struct CodeChunk {
  static_assert(IsCodeRow(kType));
  static constexpr CodeRow kRow = CodeRowOf(kType);
  static constexpr int kWords = kRow.code_bits;                              // of a lane: 4 or 2
  static constexpr int kHighWords = kRow.high_bits;                          // 0, 1 or 2
  static constexpr int kCodeBytes = 16 * kWords, kHighBytes = 16 * kHighWords;
  // A record of 256 values serves two chunks; F16 scales of single blocks come 8 bytes a chunk.
  static constexpr int kRecordBytes = kRow.whole_blocks ? kRow.record_bytes : kRow.record_bytes / 2;
  static constexpr int kTopBytes = kRow.top_bytes == 0 ? 0 : kRow.whole_blocks ? 4 : kRow.top_bytes / 2;
  static constexpr int kSubBlocks = kRow.sub_block == 16 ? 2 : 1;            // scales of a block of 32
  static constexpr bool kMinima = kRow.minima;

  CACHALOT_HOST_DEVICE static constexpr int RecordAt(int chunk) { return kRow.whole_blocks ? chunk / 2 * kRecordBytes : chunk * kRecordBytes; }
  // Tops of 2 bytes (Q6_K) come two at a time.
  CACHALOT_HOST_DEVICE static constexpr int TopAt(int chunk) {
    return !kRow.whole_blocks ? chunk * kTopBytes : chunk / 2 * kRow.top_bytes / 4 * 4;
  }
};

CACHALOT_HOST_DEVICE float HalfValue(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
#else
  return F16ToF32(static_cast<uint16_t>(bits));
#endif
}
// Rounded on their own: not to be contracted.
CACHALOT_HOST_DEVICE float RoundedProduct(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
CACHALOT_HOST_DEVICE float RoundedDifference(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fsub_rn(a, b);
#else
  return a - b;
#endif
}

// Byte i of the result: byte (selector >> 4 i & 7) of a (0 .. 3) and b (4 .. 7).
CACHALOT_HOST_DEVICE uint32_t PickBytes(uint32_t a, uint32_t b, uint32_t selector) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, selector);
#else
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= static_cast<uint32_t>(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return out;
#endif
}

// Which of a lane's words hold block b.
template <DType kType>
CACHALOT_HOST_DEVICE constexpr int CodeWordOf(int b) { return CodeChunk<kType>::kRow.code_bits == 4 ? b : b / 2; }
template <DType kType>
CACHALOT_HOST_DEVICE constexpr int HighWordOf(int b) { return CodeChunk<kType>::kRow.high_bits == 2 ? b / 2 : 0; }

// The block's low four bits (Q2_K, Q3_K: all bits): value 4q + i at bits 8i, value 16 + 4q + i at bits 8i + 4.
template <DType kType>
CACHALOT_HOST_DEVICE uint32_t CodeNibbles(uint32_t codes, uint32_t high, int b) {
  uint32_t nibbles = codes;
  if constexpr (CodeChunk<kType>::kRow.code_bits == 2) nibbles = codes >> b % 2 * 2 & 0x33333333;
  if constexpr (kType == DType::kQ3_K) nibbles |= (high >> b & 0x11111111) << 2;
  return nibbles;
}

// IQ4's levels plus 128, four to a word.
constexpr uint32_t IQ4LevelWord(int word) {
  constexpr int kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= static_cast<uint32_t>(kLevels[word * 4 + i] + 128) << 8 * i;
  return out;
}
inline constexpr uint32_t kIQ4Words[4] = {IQ4LevelWord(0), IQ4LevelWord(1), IQ4LevelWord(2), IQ4LevelWord(3)};
// The levels (plus 128) of the low four nibbles, one a byte.
CACHALOT_HOST_DEVICE uint32_t IQ4Levels(uint32_t nibbles) {
  constexpr uint32_t k0 = kIQ4Words[0], k1 = kIQ4Words[1], k2 = kIQ4Words[2], k3 = kIQ4Words[3];
  const uint32_t index = nibbles & 0x7777;
  const uint32_t low = PickBytes(k0, k1, index), high = PickBytes(k2, k3, index);
  return PickBytes(low, high, 0x3210 | (nibbles & 0x8888) >> 1);
}

// What is subtracted from the numbers that CodePairs gives.
template <DType kType>
CACHALOT_HOST_DEVICE constexpr int CodeZero() {
  constexpr CodeRow kRow = CodeChunk<kType>::kRow;
  return kRow.levels ? 128 : kRow.minima ? 0 : 1 << (kRow.code_bits + kRow.high_bits - 1);
}

// The lane's eight values of block b as numbers below 256, two a word (bits 0 .. 7 and 16 .. 23): out[half][0] values
// 16 half + 4q and + 2, out[half][1] values + 1 and + 3.
template <DType kType>
CACHALOT_HOST_DEVICE void CodePairs(uint32_t codes, uint32_t high, int b, uint32_t (&out)[2][2]) {
  constexpr CodeRow kRow = CodeChunk<kType>::kRow;
  const uint32_t nibbles = CodeNibbles<kType>(codes, high, b);
  if constexpr (kRow.levels) {
    const uint32_t first = IQ4Levels(nibbles), second = IQ4Levels(nibbles >> 16);
    out[0][0] = PickBytes(first, second, 0x0400) & 0x00ff00ff;
    out[1][0] = PickBytes(first, second, 0x0501) & 0x00ff00ff;
    out[0][1] = PickBytes(first, second, 0x0602) & 0x00ff00ff;
    out[1][1] = PickBytes(first, second, 0x0703) & 0x00ff00ff;
  } else {
    out[0][0] = nibbles & 0x000f000f;
    out[1][0] = nibbles >> 4 & 0x000f000f;
    out[0][1] = nibbles >> 8 & 0x000f000f;
    out[1][1] = nibbles >> 12 & 0x000f000f;
    if constexpr (kRow.code_bits == 4 && kRow.high_bits > 0) {  // above the nibble
      constexpr uint32_t kMask = kRow.high_bits == 2 ? 0x00300030 : 0x00100010;
      const uint32_t h = high >> (kRow.high_bits == 2 ? b % 2 * 2 : b);
      out[0][0] |= h << 4 & kMask;
      out[1][0] |= h & kMask;
      out[0][1] |= h >> 4 & kMask;
      out[1][1] |= h >> 8 & kMask;
    }
  }
}

// value = scale[half] * (number - CodeZero) - min[half], halves of 16 values; one of the two, twice, where 32 share a scale.
struct CodeScales {
  float scale[2];
  float min[2];
};

// Of block b of chunk `chunk`; `record` and `top`: the words (by []) at RecordAt(chunk) and TopAt(chunk).
template <DType kType, typename Words>
CACHALOT_HOST_DEVICE CodeScales CodeScalesOf(const Words& record, const Words& top, int chunk, int b) {
  CodeScales s = {};
  [[maybe_unused]] const int c = chunk % 2;
  if constexpr (!CodeChunk<kType>::kRow.whole_blocks) {
    s.scale[0] = s.scale[1] = HalfValue(record[b / 2] >> b % 2 * 16);
    if constexpr (kType == DType::kQ5_1) s.min[0] = s.min[1] = -HalfValue(top[b / 2] >> b % 2 * 16);
  } else if constexpr (kType == DType::kQ4_K || kType == DType::kQ5_K) {
    const uint32_t low = record[1 + c] >> 8 * b, high = record[3] >> 4 * (4 * c + b);
    const auto scale = static_cast<float>((low & 0xf) | (high & 3) << 4), min = static_cast<float>((low >> 4 & 0xf) | (high << 2 & 0x30));
    const uint32_t d = record[0];
    s.scale[0] = s.scale[1] = RoundedProduct(HalfValue(d), scale);
    s.min[0] = s.min[1] = RoundedProduct(HalfValue(d >> 16), min);
  } else if constexpr (kType == DType::kIQ4_XS) {
    const int sub = 4 * c + b;
    const uint32_t d = record[0], scale = (record[1] >> 4 * sub & 0xf) | (d >> (16 + 2 * sub) & 3) << 4;
    s.scale[0] = s.scale[1] = RoundedProduct(HalfValue(d), static_cast<float>(static_cast<int>(scale) - 32));
  } else if constexpr (kType == DType::kQ2_K) {
    const uint32_t pair = record[2 * c + b / 2] >> b % 2 * 16;
    const uint32_t both = top[0];
    const float d = HalfValue(both), dmin = HalfValue(both >> 16);
    for (int half = 0; half < 2; ++half) {
      s.scale[half] = RoundedProduct(d, static_cast<float>(pair >> 8 * half & 0xf));
      s.min[half] = RoundedProduct(dmin, static_cast<float>(pair >> (8 * half + 4) & 0xf));
    }
  } else if constexpr (kType == DType::kQ3_K) {
    const uint32_t low = record[c] >> 8 * b, high = record[2] >> (16 * c + 4 * b);
    const float d = HalfValue(record[3]);
    for (int half = 0; half < 2; ++half) {
      const uint32_t scale = (low >> 4 * half & 0xf) | (high >> 2 * half & 3) << 4;
      s.scale[half] = RoundedProduct(d, static_cast<float>(static_cast<int>(scale) - 32));
    }
  } else {  // Q6_K
    const uint32_t pair = record[2 * c + b / 2] >> b % 2 * 16;
    const float d = HalfValue(top[0] >> chunk / 2 % 2 * 16);
    for (int half = 0; half < 2; ++half) {
      s.scale[half] = RoundedProduct(d, static_cast<float>(static_cast<int8_t>(pair >> 8 * half & 0xff)));
    }
  }
  return s;
}

// Values i .. i + 3 of a row; i is a multiple of 4. Exact: the format's own arithmetic. Those beyond k are zero.
template <DType kType>
CACHALOT_HOST_DEVICE void LoadCodes4(const std::byte* row, const CudaRowLayout& layout, int64_t i, float (&v)[4]) {
  using C = CodeChunk<kType>;
  const int chunk = static_cast<int>(i / 128), at = static_cast<int>(i % 128);
  const int b = at / 32, half = at % 32 / 16, lane = at % 16 / 4;
  const auto words = [&](int64_t offset) { return reinterpret_cast<const uint32_t*>(row + offset); };
  const uint32_t codes = words(int64_t{chunk} * C::kCodeBytes)[lane * C::kWords + CodeWordOf<kType>(b)];
  uint32_t high = 0;
  if constexpr (C::kHighWords > 0) {
    high = words(layout.high_offset + int64_t{chunk} * C::kHighBytes)[lane * C::kHighWords + HighWordOf<kType>(b)];
  }
  const CodeScales s = CodeScalesOf<kType>(words(layout.scales_offset + C::RecordAt(chunk)),
                                           words(layout.minima_offset + C::TopAt(chunk)), chunk, b);
  uint32_t pairs[2][2];
  CodePairs<kType>(codes, high, b, pairs);
  const uint32_t even = half == 0 ? pairs[0][0] : pairs[1][0], odd = half == 0 ? pairs[0][1] : pairs[1][1];
  const uint32_t numbers[4] = {even & 0xff, odd & 0xff, even >> 16, odd >> 16};
  const float scale = half == 0 ? s.scale[0] : s.scale[1], min = half == 0 ? s.min[0] : s.min[1];
  for (int j = 0; j < 4; ++j) {
    v[j] = RoundedProduct(scale, static_cast<float>(static_cast<int>(numbers[j]) - CodeZero<kType>()));
    if constexpr (C::kMinima) v[j] = RoundedDifference(v[j], min);
  }
}

}  // namespace cachalot
