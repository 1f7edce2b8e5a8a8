// Writes a Hugging Face folder as the GGUF file that llama.cpp's converter would make of it: test material, which also
// gives DeepSeek's three historic layouts.
#pragma once

#include <string>

#include "base/status.h"

namespace cachalot {

enum class GgufMlaLayout {
  kLegacy,    // attn_kv_b alone, no *_mla keys, no yarn_log_multiplier (before April 2025)
  kHybrid,    // attn_kv_b, and two-dimensional attn_k_b / attn_v_b
  kMainline,  // attn_k_b (transposed) and attn_v_b, *_mla keys
};

// Weights as BF16 where the folder has BF16 or F32, norms and router as F32. FP8 weights are dequantised to F32.
Status WriteHfAsGguf(const std::string& folder, GgufMlaLayout layout, const std::string& path);

}  // namespace cachalot
