// What the Hugging Face configurations of our architectures have in common.
#pragma once

#include "formats/hf_config.h"
#include "model/model_spec.h"
#include "model/rope_scaling.h"

namespace cachalot {

// Limits that no real model comes near: they keep a hostile file from asking for absurd sizes.
inline constexpr int64_t kMaxVocab = 1 << 22;
inline constexpr int64_t kMaxWidth = 1 << 20;
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxHeads = 1 << 14;
inline constexpr int64_t kMaxHeadDim = 1 << 14;
inline constexpr int64_t kMaxExperts = 1 << 14;
inline constexpr int64_t kMaxPositions = int64_t{1} << 30;

Result<int32_t> HfInt(const HfConfig& config, const char* key, int64_t min, int64_t max);
Result<int32_t> HfIntOr(const HfConfig& config, const char* key, int64_t default_value, int64_t min, int64_t max);

// vocab_size, hidden_size, layers, intermediate_size, norm, tying, context; and hidden_act, which must be silu.
Result<ModelSpec> HfDenseSpec(const HfConfig& config);
// rope_scaling in any of the spellings.
Result<RopeScaling> HfRopeScaling(const HfConfig& config);
// Heads and RoPE of grouped-query attention.
Status HfGqa(const HfConfig& config, ModelSpec* spec);

}  // namespace cachalot
