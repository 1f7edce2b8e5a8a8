// Qwen3-MoE: Qwen3 attention; softmax top-k experts, weights normalised when norm_topk_prob, no shared expert.
#include <algorithm>

#include "model/arch/architecture.h"
#include "model/arch/gguf_common.h"
#include "model/arch/hf_common.h"
#include "model/arch/qwen_window.h"

namespace cachalot {
namespace {

Result<ModelSpec> FromHf(const HfConfig& config) {
  ASSIGN_OR_RETURN(ModelSpec spec, HfDenseSpec(config));
  RETURN_IF_ERROR(HfGqa(config, &spec));
  RETURN_IF_ERROR(HfQwenWindow(config, &spec));
  ASSIGN_OR_RETURN(spec.attention.qkv_bias, config.BoolOr("attention_bias", false));
  spec.attention.qk_norm = true;
  const char* experts_key = config.Has("num_experts") ? "num_experts" : "num_local_experts";
  ASSIGN_OR_RETURN(spec.moe.num_experts, HfInt(config, experts_key, 1, kMaxExperts));
  ASSIGN_OR_RETURN(spec.moe.top_k, HfInt(config, "num_experts_per_tok", 1, spec.moe.num_experts));
  ASSIGN_OR_RETURN(spec.moe.intermediate, HfInt(config, "moe_intermediate_size", 1, kMaxWidth));
  ASSIGN_OR_RETURN(spec.moe.normalize, config.BoolOr("norm_topk_prob", false));
  // Layer i is MoE when it is not listed as dense and (i + 1) is a multiple of the step.
  ASSIGN_OR_RETURN(const int32_t step, HfIntOr(config, "decoder_sparse_step", 1, 1, kMaxLayers));
  std::vector<int64_t> dense;
  if (config.Has("mlp_only_layers")) {
    ASSIGN_OR_RETURN(dense, config.IntList("mlp_only_layers", 0, kMaxLayers));
  }
  for (int32_t i = 0; i < spec.num_layers; ++i) {
    const bool listed = std::find(dense.begin(), dense.end(), i) != dense.end();
    spec.layers[static_cast<size_t>(i)].moe = !listed && (i + 1) % step == 0;
  }
  return spec;
}

Result<ModelSpec> FromGguf(const GgufFile& file) {
  ASSIGN_OR_RETURN(const GgufKeys key, GgufKeys::Of(file));
  ASSIGN_OR_RETURN(ModelSpec spec, GgufDenseSpec(file));
  RETURN_IF_ERROR(GgufGqa(file, RopeStyle::kHalf, &spec));
  spec.attention.qk_norm = true;
  ASSIGN_OR_RETURN(spec.moe.num_experts, GgufInt(file, key("expert_count"), 1, kMaxExperts));
  ASSIGN_OR_RETURN(spec.moe.top_k, GgufInt(file, key("expert_used_count"), 1, spec.moe.num_experts));
  ASSIGN_OR_RETURN(spec.moe.intermediate, GgufInt(file, key("expert_feed_forward_length"), 1, kMaxWidth));
  spec.moe.normalize = true;  // every released Qwen3-MoE; GGUF has no key for it
  for (auto& layer : spec.layers) layer.moe = true;
  return spec;
}

constexpr const char* kHfClasses[] = {"Qwen3MoeForCausalLM"};
constexpr const char* kGgufNames[] = {"qwen3moe"};

}  // namespace

const Architecture kQwen3MoeArchitecture = {"qwen3-moe", kHfClasses, kGgufNames, FromHf, FromGguf, "qwen3moe", false};

}  // namespace cachalot
