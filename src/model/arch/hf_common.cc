#include "formats/text.h"
#include "model/arch/hf_common.h"

#include <cmath>

namespace cachalot {

Result<int32_t> HfInt(const HfConfig& config, const char* key, int64_t min, int64_t max) {
  ASSIGN_OR_RETURN(const int64_t value, config.Int(key, min, max));
  return static_cast<int32_t>(value);
}

Result<int32_t> HfIntOr(const HfConfig& config, const char* key, int64_t default_value, int64_t min, int64_t max) {
  ASSIGN_OR_RETURN(const int64_t value, config.IntOr(key, default_value, min, max));
  return static_cast<int32_t>(value);
}

Result<ModelSpec> HfDenseSpec(const HfConfig& config) {
  ModelSpec spec;
  ASSIGN_OR_RETURN(spec.vocab_size, HfInt(config, "vocab_size", 1, kMaxVocab));
  ASSIGN_OR_RETURN(spec.hidden_size, HfInt(config, "hidden_size", 1, kMaxWidth));
  ASSIGN_OR_RETURN(spec.num_layers, HfInt(config, "num_hidden_layers", 1, kMaxLayers));
  ASSIGN_OR_RETURN(spec.intermediate, HfInt(config, "intermediate_size", 1, kMaxWidth));
  ASSIGN_OR_RETURN(spec.max_context, HfIntOr(config, "max_position_embeddings", 2048, 1, kMaxPositions));
  ASSIGN_OR_RETURN(const double eps, config.FloatOr("rms_norm_eps", 1e-6, 0.0, 1.0));
  spec.norm_eps = static_cast<float>(eps);
  ASSIGN_OR_RETURN(spec.tied_embeddings, config.BoolOr("tie_word_embeddings", false));
  ASSIGN_OR_RETURN(const std::string act, config.StringOr("hidden_act", "silu"));
  if (act != "silu" && act != "swish") return Unsupported("{}: hidden_act '{}': only silu is known", config.place(), Printable(act));
  spec.layers.assign(static_cast<size_t>(spec.num_layers), LayerSpec{});
  return spec;
}

Result<RopeScaling> HfRopeScaling(const HfConfig& config) {
  RopeScaling scaling;
  if (config.has_rope_per_layer_type()) {
    return Unsupported("{}: rope_parameters differ by layer type; no architecture of ours does that", config.place());
  }
  if (!config.Has("rope_scaling")) return scaling;
  ASSIGN_OR_RETURN(const HfConfig rope, config.Object("rope_scaling"));
  ASSIGN_OR_RETURN(const std::string old_type, rope.StringOr("type", "default"));
  ASSIGN_OR_RETURN(const std::string type, rope.StringOr("rope_type", old_type));
  if (type == "default") return scaling;
  if (type == "linear") {
    scaling.kind = RopeScalingKind::kLinear;
  } else if (type == "llama3") {
    scaling.kind = RopeScalingKind::kLlama3;
  } else if (type == "yarn") {
    scaling.kind = RopeScalingKind::kYarn;
  } else {
    return Unsupported("{}: type '{}' is none of default, linear, llama3, yarn", rope.place(), Printable(type));
  }
  ASSIGN_OR_RETURN(scaling.factor, rope.Float("factor", 1.0, 1e6));
  if (scaling.kind == RopeScalingKind::kLinear) return scaling;
  ASSIGN_OR_RETURN(const int64_t max_context, config.IntOr("max_position_embeddings", 2048, 1, kMaxPositions));
  ASSIGN_OR_RETURN(scaling.original_context,
                   rope.IntOr("original_max_position_embeddings", max_context, 1, kMaxPositions));
  if (scaling.kind == RopeScalingKind::kLlama3) {
    ASSIGN_OR_RETURN(scaling.low_freq_factor, rope.Float("low_freq_factor", 1e-3, 1e6));
    ASSIGN_OR_RETURN(scaling.high_freq_factor, rope.Float("high_freq_factor", 1e-3, 1e6));
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      return InvalidArgument("{}: high_freq_factor {} must exceed low_freq_factor {}", rope.place(),
                             scaling.high_freq_factor, scaling.low_freq_factor);
    }
    return scaling;
  }
  ASSIGN_OR_RETURN(scaling.beta_fast, rope.FloatOr("beta_fast", 32.0, 1e-3, 1e6));
  ASSIGN_OR_RETURN(scaling.beta_slow, rope.FloatOr("beta_slow", 1.0, 1e-3, 1e6));
  ASSIGN_OR_RETURN(scaling.mscale, rope.FloatOr("mscale", 0.0, 0.0, 100.0));
  ASSIGN_OR_RETURN(scaling.mscale_all_dim, rope.FloatOr("mscale_all_dim", 0.0, 0.0, 100.0));
  ASSIGN_OR_RETURN(scaling.attention_factor, rope.FloatOr("attention_factor", 0.0, 0.0, 100.0));
  return scaling;
}

Status HfGqa(const HfConfig& config, ModelSpec* spec) {
  AttentionSpec& attention = spec->attention;
  attention.kind = AttentionKind::kGqa;
  ASSIGN_OR_RETURN(attention.num_q_heads, HfInt(config, "num_attention_heads", 1, kMaxHeads));
  ASSIGN_OR_RETURN(attention.num_kv_heads,
                   HfIntOr(config, "num_key_value_heads", attention.num_q_heads, 1, kMaxHeads));
  if (!config.Has("head_dim") && spec->hidden_size % attention.num_q_heads != 0) {
    return InvalidArgument("{}: hidden_size {} is no multiple of num_attention_heads {}, and there is no head_dim",
                           config.place(), spec->hidden_size, attention.num_q_heads);
  }
  ASSIGN_OR_RETURN(attention.head_dim,
                   HfIntOr(config, "head_dim", spec->hidden_size / attention.num_q_heads, 1, kMaxHeadDim));
  ASSIGN_OR_RETURN(const RopeScaling scaling, HfRopeScaling(config));
  ASSIGN_OR_RETURN(const double theta, config.FloatOr("rope_theta", 10000.0, 1.0, 1e12));
  attention.rope.style = RopeStyle::kHalf;
  attention.rope.dim = attention.head_dim;
  attention.rope.inv_freq = RopeInvFreq(attention.rope.dim, theta, scaling);
  attention.rope.mscale = static_cast<float>(RopeMscale(scaling));
  attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(attention.head_dim)));
  return Status::Ok();
}

}  // namespace cachalot
