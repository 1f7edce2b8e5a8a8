// What DeepSeek's mixtures of experts (v1, V2, V3) and their latent attention have in common.
#pragma once

#include "formats/gguf.h"
#include "formats/hf_config.h"
#include "model/model_spec.h"

namespace cachalot {

// Routed and shared experts, first_k_dense_replace, moe_layer_freq, top-k, scaling, groups as the file names them.
Status HfDeepseekMoe(const HfConfig& config, ModelSpec* spec);
// MLA: ranks, head parts, interleaved RoPE with YaRN, and the one softmax scale.
Status HfMla(const HfConfig& config, ModelSpec* spec);

Status GgufDeepseekMoe(const GgufFile& file, ModelSpec* spec);
// Legacy (kv_b only), hybrid and mainline (*_mla keys) files.
Status GgufMla(const GgufFile& file, ModelSpec* spec);

}  // namespace cachalot
