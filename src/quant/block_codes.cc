#include "quant/block_codes.h"

#include "quant/iq4_nl.h"
#include "quant/iq4_xs.h"
#include "quant/q2_k.h"
#include "quant/q3_k.h"
#include "quant/q4_k.h"
#include "quant/q5_0.h"
#include "quant/q5_1.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"

namespace cachalot {
namespace {

constexpr CodeFormat kFormats[] = {
    {DType::kQ5_0, 5, 32, false, UnpackQ5_0, PackQ5_0, ValuesQ5_0},
    {DType::kQ5_1, 5, 32, true, UnpackQ5_1, PackQ5_1, ValuesQ5_1},
    {DType::kIQ4_NL, 4, 32, false, UnpackIQ4_NL, PackIQ4_NL, ValuesIQ4_NL},
    {DType::kQ2_K, 2, 16, true, UnpackQ2_K, PackQ2_K, ValuesQ2_K},
    {DType::kQ3_K, 3, 16, false, UnpackQ3_K, PackQ3_K, ValuesQ3_K},
    {DType::kQ4_K, 4, 32, true, UnpackQ4_K, PackQ4_K, ValuesQ4_K},
    {DType::kQ5_K, 5, 32, true, UnpackQ5_K, PackQ5_K, ValuesQ5_K},
    {DType::kQ6_K, 6, 16, false, UnpackQ6_K, PackQ6_K, ValuesQ6_K},
    {DType::kIQ4_XS, 4, 32, false, UnpackIQ4_XS, PackIQ4_XS, ValuesIQ4_XS},
};

}  // namespace

const CodeFormat* FindCodeFormat(DType dtype) {
  for (const CodeFormat& format : kFormats) {
    if (format.dtype == dtype) return &format;
  }
  return nullptr;
}

}  // namespace cachalot
