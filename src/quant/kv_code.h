// The codes of a quantised KV cache: one row of the table for each, one file for each.
//
// A vector of a token (a head's key or value, or MLA's latent) is cut into units of 32 values, the last one filled
// up with zeros. A unit's codes lie in a main plane of 16 or 32 bytes and, for six bits, 8 bytes of a high plane;
// values share a scale in groups of whole units. Encoding a token needs nothing but the token: blocks are
// append-only, the same tokens give the same bits, and a token may be written over.
//
// The order within a unit serves vector registers of 32 bytes and the operands of mma.m16n8k32 alike:
//   main plane, 4 bits: byte i holds value i in its low half and value 16 + i in its high half;
//   main plane, 8 bits: byte i holds value i;
//   main plane, 16 bits: bytes 2 i and 2 i + 1 hold value i, low byte first (64 bytes a unit);
//   high plane, 2 bits: byte i (0 … 7) holds value 8 j + i in bits 2 j and 2 j + 1.
#pragma once

#include <bit>
#include <cstdint>

namespace cachalot {

enum class KvCode : uint8_t { kNone, kInt4, kInt6, kInt8, kE4M3, kBF16 };

inline constexpr int32_t kKvUnit = 32;
// What is no number becomes 0, and larger values than this become it: one bad value spoils itself, not its group.
inline constexpr float kKvLargest = 0x1p100f;
inline constexpr float kKvSmallest = 0x1p-100f;  // a group without a larger value is all zeros

struct KvCodec {
  KvCode code;
  const char* name;
  int32_t main_bytes;  // of a unit
  int32_t high_bytes;
  float limit;         // codes stand for values within ± limit times the scale
  // `inverse` is 1 / scale, or 0 for a group of zeros. Values within the limit but for a rounding.
  void (*encode)(const float* x, float inverse, uint8_t* main, uint8_t* high);
  void (*decode)(const uint8_t* main, const uint8_t* high, float scale, float* x);
};

const KvCodec& KvCodecOf(KvCode code);  // not of kNone

// How one kind of vector is stored.
struct KvCoding {
  KvCode code = KvCode::kNone;
  int32_t dim = 0;     // values
  int32_t group = 0;   // values that share a scale: a multiple of 32

  int32_t num_units() const { return (dim + kKvUnit - 1) / kKvUnit; }
  int32_t padded() const { return num_units() * kKvUnit; }
  int32_t num_groups() const { return group == 0 ? 0 : (padded() + group - 1) / group; }
};

// Scales are BF16: they have F32's range, and a product of scale and code is exact in F32. Rounded up, so that the
// largest value's code is within the limit.
inline uint16_t KvScaleBits(float largest, float limit) {
  if (!(largest >= kKvSmallest)) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(largest / limit);
  return static_cast<uint16_t>((bits + 0xffffu) >> 16);
}

inline float KvFinite(float x) {
  if (x != x) return 0.0f;
  return x > kKvLargest ? kKvLargest : x < -kKvLargest ? -kKvLargest : x;
}

// x [dim]; main, high: the token's rows; scales [num_groups].
void EncodeKvVector(const KvCoding& coding, const float* x, uint8_t* main, uint8_t* high, uint16_t* scales);
void DecodeKvVector(const KvCoding& coding, const uint8_t* main, const uint8_t* high, const uint16_t* scales, float* x);

extern const KvCodec kKvInt4;
extern const KvCodec kKvInt6;
extern const KvCodec kKvInt8;
extern const KvCodec kKvE4M3;
extern const KvCodec kKvBF16;  // of sinks only (SinkScheme)

}  // namespace cachalot
