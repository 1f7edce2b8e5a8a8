// The inner loops of Attention as the tiles call them (attention_tile_avx2.h), for each type of the cache, so
// that wider instruction sets bring only these. Nothing inline here: files compiled for different CPUs see
// it.
//
// Invariant, the ground of all equal bits, whatever the instruction set: a score is eight partial sums over
// d, taken in the order of d and reduced by ReduceAdd's tree; a softmax's sum has sixteen parts, by position
// modulo 16; a weighted sum adds its tokens in the order of their positions. None of it depends on how many
// rows or tokens a kernel handles at once, nor on the type that the values were stored in.
#pragma once

#include <cstdint>

namespace cachalot {

// Tokens whose softmax numerators are taken against one maximum. A chunk starts at an absolute position that
// is a multiple of this; partial results of the chunks are merged in order.
inline constexpr int kChunkTokens = 256;
inline constexpr int kScoreStride = kChunkTokens + 16;  // not a power of two: rows must not share cache sets
inline constexpr int kMaxGroupRows = 6;

// What the second product will read: `bytes` at each token, asked for while its scores are computed. The
// hardware's prefetcher rests while the second product works from L2; this keeps memory busy (decode: up to
// twice as fast).
template <typename T>
struct Ahead {
  const T* const* tokens = nullptr;
  int64_t bytes = 0;
};

template <typename T>
struct ChunkKernels {
  // Rows that share a load of a key where a tile has many.
  int score_rows;
  // scores[r * kScoreStride + t] = (q[r] · k[t]) * scale for `rows` rows and tokens [begin, end), both
  // multiples of 8.
  void (*scores)(int rows, const float* const* q, const T* const* k, int dims, float scale, int begin,
                 int end, float* scores, const Ahead<T>& ahead);
  // Turns scores[begin, end) into 2^(score - maximum), gives that maximum and their sum. The lanes around the
  // range, up to multiples of 16, are overwritten.
  void (*softmax)(float* scores, int begin, int end, float* maximum, float* sum);
  // out[r * out_stride + d] += sum over t in [begin, end) of p[r * kScoreStride + t] * v[t][at + d], d <
  // dims.
  void (*weigh)(int rows, const float* p, const T* const* v, int64_t at, int dims, int begin, int end,
                float* out, int64_t out_stride);
};

struct F16Bits;
struct BF16Bits;
// For dims that are multiples of 16.
const ChunkKernels<float>& ChunkKernelsAvx512(float);
const ChunkKernels<F16Bits>& ChunkKernelsAvx512(F16Bits);
const ChunkKernels<BF16Bits>& ChunkKernelsAvx512(BF16Bits);

}  // namespace cachalot
