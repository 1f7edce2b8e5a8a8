// The eight scales and eight minima of Q4_K and Q5_K, six bits each in twelve bytes: for j < 4 bytes j and 4
// + j hold scale j and minimum j in their low six bits; byte 8 + j holds the low four bits of scale 4 + j and
// (high half) of minimum 4 + j, whose high two bits are the top two of bytes j and 4 + j.
#pragma once

#include "quant/block_codes.h"

namespace cachalot {

inline void UnpackSixBit(const uint8_t* packed, BlockCodes* codes) {
  for (int j = 0; j < 4; ++j) {
    codes->scale[j] = packed[j] & 63;
    codes->min[j] = packed[4 + j] & 63;
    codes->scale[4 + j] = static_cast<uint8_t>((packed[8 + j] & 0xf) | packed[j] >> 6 << 4);
    codes->min[4 + j] = static_cast<uint8_t>(packed[8 + j] >> 4 | packed[4 + j] >> 6 << 4);
  }
}

inline void PackSixBit(const BlockCodes& codes, uint8_t* packed) {
  for (int j = 0; j < 4; ++j) {
    packed[j] = static_cast<uint8_t>(codes.scale[j] | codes.scale[4 + j] >> 4 << 6);
    packed[4 + j] = static_cast<uint8_t>(codes.min[j] | codes.min[4 + j] >> 4 << 6);
    packed[8 + j] = static_cast<uint8_t>((codes.scale[4 + j] & 0xf) | (codes.min[4 + j] & 0xf) << 4);
  }
}

}  // namespace cachalot
