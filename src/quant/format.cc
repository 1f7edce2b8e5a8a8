#include "quant/format.h"

#include "quant/fp8_e4m3.h"
#include "quant/iq4_nl.h"
#include "quant/iq4_xs.h"
#include "quant/plain.h"
#include "quant/q2_k.h"
#include "quant/q3_k.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q4_k.h"
#include "quant/q5_0.h"
#include "quant/q5_1.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"

namespace cachalot {
namespace {

constexpr QuantFormat kFormats[] = {
    {DType::kF32, DecodeF32, EncodeF32},
    {DType::kF16, DecodeF16, EncodeF16},
    {DType::kBF16, DecodeBF16, EncodeBF16},
    {DType::kFP8E4M3, DecodeFP8E4M3, EncodeFP8E4M3},
    {DType::kQ8_0, DecodeQ8_0, EncodeQ8_0},
    {DType::kQ4_0, DecodeQ4_0, EncodeQ4_0, EncodeWeightedQ4_0},
    {DType::kQ4_1, DecodeQ4_1, EncodeQ4_1, EncodeWeightedQ4_1},
    {DType::kQ5_0, DecodeQ5_0, EncodeQ5_0, EncodeWeightedQ5_0},
    {DType::kQ5_1, DecodeQ5_1, EncodeQ5_1, EncodeWeightedQ5_1},
    {DType::kIQ4_NL, DecodeIQ4_NL, EncodeIQ4_NL, EncodeWeightedIQ4_NL},
    {DType::kQ2_K, DecodeQ2_K, EncodeQ2_K, EncodeWeightedQ2_K},
    {DType::kQ3_K, DecodeQ3_K, EncodeQ3_K, EncodeWeightedQ3_K},
    {DType::kQ4_K, DecodeQ4_K, EncodeQ4_K, EncodeWeightedQ4_K},
    {DType::kQ5_K, DecodeQ5_K, EncodeQ5_K, EncodeWeightedQ5_K},
    {DType::kQ6_K, DecodeQ6_K, EncodeQ6_K, EncodeWeightedQ6_K},
    {DType::kIQ4_XS, DecodeIQ4_XS, EncodeIQ4_XS, EncodeWeightedIQ4_XS},
};

}  // namespace

std::span<const QuantFormat> AllQuantFormats() {
  return kFormats;
}

const QuantFormat* FindQuantFormat(DType dtype) {
  for (const auto& format : kFormats) {
    if (format.dtype == dtype) return &format;
  }
  return nullptr;
}

}  // namespace cachalot
