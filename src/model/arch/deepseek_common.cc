#include "model/arch/deepseek_common.h"

#include <cmath>

#include "model/arch/gguf_common.h"
#include "model/arch/hf_common.h"

namespace cachalot {
namespace {

void SetMlaRope(AttentionSpec* attention, double theta, const RopeScaling& scaling) {
  attention->rope.style = RopeStyle::kInterleaved;
  attention->rope.dim = attention->rope_dim;
  attention->rope.inv_freq = RopeInvFreq(attention->rope_dim, theta, scaling);
  attention->rope.mscale = static_cast<float>(RopeMscale(scaling));
  // From the width of an expanded head, never from the latent's: absorbed and expanded attention share this scale.
  attention->scale = static_cast<float>(RopeSoftmaxCorrection(scaling) /
                                        std::sqrt(static_cast<double>(attention->q_head_dim())));
}

}  // namespace

Status HfDeepseekMoe(const HfConfig& config, ModelSpec* spec) {
  if (!config.Has("n_routed_experts")) return Status::Ok();  // the config of a dense variant
  MoeSpec& moe = spec->moe;
  ASSIGN_OR_RETURN(moe.num_experts, HfInt(config, "n_routed_experts", 1, kMaxExperts));
  ASSIGN_OR_RETURN(moe.top_k, HfInt(config, "num_experts_per_tok", 1, moe.num_experts));
  ASSIGN_OR_RETURN(moe.intermediate, HfInt(config, "moe_intermediate_size", 1, kMaxWidth));
  ASSIGN_OR_RETURN(const int32_t num_shared, HfIntOr(config, "n_shared_experts", 0, 0, kMaxExperts));
  moe.shared_intermediate = num_shared * moe.intermediate;
  ASSIGN_OR_RETURN(moe.normalize, config.BoolOr("norm_topk_prob", false));
  ASSIGN_OR_RETURN(const double scaling, config.FloatOr("routed_scaling_factor", 1.0, 0.0, 1e6));
  moe.scaling = static_cast<float>(scaling);
  ASSIGN_OR_RETURN(moe.num_groups, HfIntOr(config, "n_group", 1, 1, moe.num_experts));
  ASSIGN_OR_RETURN(moe.top_k_groups, HfIntOr(config, "topk_group", 1, 1, moe.num_groups));
  ASSIGN_OR_RETURN(const int32_t first_moe, HfIntOr(config, "first_k_dense_replace", 0, 0, kMaxLayers));
  ASSIGN_OR_RETURN(const int32_t freq, HfIntOr(config, "moe_layer_freq", 1, 1, kMaxLayers));
  for (int32_t i = 0; i < spec->num_layers; ++i) {
    spec->layers[static_cast<size_t>(i)].moe = i >= first_moe && i % freq == 0;
  }
  return Status::Ok();
}

Status HfMla(const HfConfig& config, ModelSpec* spec) {
  AttentionSpec& attention = spec->attention;
  attention.kind = AttentionKind::kMla;
  ASSIGN_OR_RETURN(const bool bias, config.BoolOr("attention_bias", false));
  if (bias) return Unsupported("{}: attention_bias true: no DeepSeek that we know has one", config.place());
  ASSIGN_OR_RETURN(attention.num_q_heads, HfInt(config, "num_attention_heads", 1, kMaxHeads));
  attention.num_kv_heads = 1;
  ASSIGN_OR_RETURN(attention.q_lora_rank, HfIntOr(config, "q_lora_rank", 0, 1, kMaxWidth));
  ASSIGN_OR_RETURN(attention.kv_lora_rank, HfInt(config, "kv_lora_rank", 1, kMaxWidth));
  ASSIGN_OR_RETURN(attention.nope_dim, HfInt(config, "qk_nope_head_dim", 1, kMaxHeadDim));
  ASSIGN_OR_RETURN(attention.rope_dim, HfInt(config, "qk_rope_head_dim", 2, kMaxHeadDim));
  ASSIGN_OR_RETURN(attention.v_dim, HfInt(config, "v_head_dim", 1, kMaxHeadDim));
  attention.head_dim = attention.q_head_dim();
  ASSIGN_OR_RETURN(const RopeScaling scaling, HfRopeScaling(config));
  ASSIGN_OR_RETURN(const double theta, config.FloatOr("rope_theta", 10000.0, 1.0, 1e12));
  SetMlaRope(&attention, theta, scaling);
  return Status::Ok();
}

Status GgufDeepseekMoe(const GgufFile& file, ModelSpec* spec) {
  ASSIGN_OR_RETURN(const GgufKeys key, GgufKeys::Of(file));
  MoeSpec& moe = spec->moe;
  ASSIGN_OR_RETURN(moe.num_experts, GgufIntOr(file, key("expert_count"), 0, 0, kMaxExperts));
  if (moe.num_experts == 0) return Status::Ok();
  ASSIGN_OR_RETURN(moe.top_k, GgufInt(file, key("expert_used_count"), 1, moe.num_experts));
  ASSIGN_OR_RETURN(moe.intermediate, GgufInt(file, key("expert_feed_forward_length"), 1, kMaxWidth));
  ASSIGN_OR_RETURN(const int32_t num_shared, GgufIntOr(file, key("expert_shared_count"), 0, 0, kMaxExperts));
  moe.shared_intermediate = num_shared * moe.intermediate;
  ASSIGN_OR_RETURN(moe.normalize, file.BoolOr(key("expert_weights_norm"), false));
  ASSIGN_OR_RETURN(const double scaling, file.FloatOr(key("expert_weights_scale"), 1.0, 0.0, 1e6));
  moe.scaling = scaling == 0.0 ? 1.0f : static_cast<float>(scaling);  // old files write 0 for "none"
  ASSIGN_OR_RETURN(moe.num_groups, GgufIntOr(file, key("expert_group_count"), 1, 1, moe.num_experts));
  ASSIGN_OR_RETURN(moe.top_k_groups, GgufIntOr(file, key("expert_group_used_count"), 1, 1, moe.num_groups));
  ASSIGN_OR_RETURN(const int32_t first_moe, GgufIntOr(file, key("leading_dense_block_count"), 0, 0, kMaxLayers));
  for (int32_t i = first_moe; i < spec->num_layers; ++i) spec->layers[static_cast<size_t>(i)].moe = true;
  return Status::Ok();
}

Status GgufMla(const GgufFile& file, ModelSpec* spec) {
  ASSIGN_OR_RETURN(const GgufKeys key, GgufKeys::Of(file));
  AttentionSpec& attention = spec->attention;
  attention.kind = AttentionKind::kMla;
  attention.num_kv_heads = 1;
  ASSIGN_OR_RETURN(attention.num_q_heads, GgufInt(file, key("attention.head_count"), 1, kMaxHeads));
  // Whether queries go through a latent is best seen from the tensors: V2-Lite files carry a q_lora_rank of 0, or none.
  if (file.FindTensor("blk.0.attn_q_a.weight") != nullptr) {
    ASSIGN_OR_RETURN(attention.q_lora_rank, GgufInt(file, key("attention.q_lora_rank"), 1, kMaxWidth));
  }
  ASSIGN_OR_RETURN(attention.kv_lora_rank, GgufInt(file, key("attention.kv_lora_rank"), 1, kMaxWidth));
  ASSIGN_OR_RETURN(attention.rope_dim, GgufInt(file, key("rope.dimension_count"), 2, kMaxHeadDim));
  const bool mainline = file.Has(key("attention.key_length_mla"));
  const std::string key_length = key(mainline ? "attention.key_length_mla" : "attention.key_length");
  const std::string value_length = key(mainline ? "attention.value_length_mla" : "attention.value_length");
  ASSIGN_OR_RETURN(const int32_t q_dim, GgufInt(file, key_length, 1, kMaxHeadDim));
  ASSIGN_OR_RETURN(attention.v_dim, GgufInt(file, value_length, 1, kMaxHeadDim));
  if (q_dim <= attention.rope_dim) {
    return InvalidArgument("{}: {} {} must exceed {} {}", file.path(), key_length, q_dim, key("rope.dimension_count"),
                           attention.rope_dim);
  }
  attention.nope_dim = q_dim - attention.rope_dim;
  attention.head_dim = q_dim;
  ASSIGN_OR_RETURN(RopeScaling scaling, GgufRopeScaling(file));
  if (scaling.kind == RopeScalingKind::kYarn) {
    // Stored as 0.1 · mscale_all_dim. Files from before the key existed: 0.0707 for V2-Lite, which alone projects its
    // queries directly, else 0.1.
    const double fallback = attention.q_lora_rank == 0 ? 0.0707 : 0.1;
    ASSIGN_OR_RETURN(const double log_multiplier, file.FloatOr(key("rope.scaling.yarn_log_multiplier"), fallback, 0.0, 10.0));
    scaling.mscale_all_dim = log_multiplier * 10.0;
    scaling.mscale = scaling.mscale_all_dim;
  }
  ASSIGN_OR_RETURN(const double theta, file.FloatOr(key("rope.freq_base"), 10000.0, 1.0, 1e12));
  SetMlaRope(&attention, theta, scaling);
  return Status::Ok();
}

}  // namespace cachalot
