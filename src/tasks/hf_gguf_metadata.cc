#include "tasks/hf_gguf_metadata.h"

#include <cmath>

#include "model/arch/architecture.h"
#include "model/arch/hf_common.h"
#include "model/rope_scaling.h"

namespace cachalot {
namespace {

class Metadata {
 public:
  Metadata(const HfConfig& config, const ModelSpec& spec, GgufWriter* writer)
      : config_(config), spec_(spec), arch_(ArchitectureOf(spec).gguf_written), writer_(*writer) {}

  Status Set(const std::string& name) {
    RETURN_IF_ERROR(Check());
    writer_.SetString("general.architecture", arch_);
    writer_.SetString("general.type", "model");
    writer_.SetString("general.name", name);
    U32("block_count", spec_.num_all_layers());
    U32("context_length", spec_.max_context);
    U32("embedding_length", spec_.hidden_size);
    U32("feed_forward_length", spec_.intermediate);
    U32("vocab_size", spec_.vocab_size);
    F32("attention.layer_norm_rms_epsilon", spec_.norm_eps);
    ASSIGN_OR_RETURN(const double theta, config_.FloatOr("rope_theta", 10000.0));
    F32("rope.freq_base", theta);
    if (spec_.attention.kind == AttentionKind::kMla) Mla();
    else Gqa();
    RETURN_IF_ERROR(Scaling());
    Experts();
    return Status::Ok();
  }

 private:
  void U32(const char* suffix, int64_t value) {
    writer_.SetU32(arch_ + "." + suffix, static_cast<uint32_t>(value));
  }
  void F32(const char* suffix, double value) { writer_.SetF32(arch_ + "." + suffix, static_cast<float>(value)); }

  Status Unsayable(const char* what) const {
    return Unsupported("{}: {}: a GGUF file of architecture '{}' cannot say that", config_.place(), what, arch_);
  }

  // What readers of the file take for granted.
  Status Check() const {
    const AttentionSpec& a = spec_.attention;
    if (a.qkv_bias != (arch_ == "qwen2") && a.kind == AttentionKind::kGqa) return Unsayable("biases of q, k and v");
    if (a.kind == AttentionKind::kMla && a.rope.style != RopeStyle::kInterleaved) return Unsayable("rope_interleave false");
    bool dense_seen_behind = false, moe_seen = false;
    for (int32_t i = 0; i < spec_.num_layers; ++i) {
      const LayerSpec& layer = spec_.layers[static_cast<size_t>(i)];
      if (layer.window != spec_.layers.front().window) return Unsayable("sliding windows that differ between layers");
      moe_seen = moe_seen || layer.moe;
      dense_seen_behind = dense_seen_behind || (moe_seen && !layer.moe);
    }
    if (dense_seen_behind) return Unsayable("dense layers between those with experts");
    if (!moe_seen) return Status::Ok();
    if (!HasDeepseekExperts() && !spec_.layers.front().moe) return Unsayable("dense layers beside those with experts");
    if (!HasDeepseekExperts() && !spec_.moe.normalize) return Unsayable("norm_topk_prob false");
    return Status::Ok();
  }

  bool HasDeepseekExperts() const { return arch_.starts_with("deepseek"); }

  void Gqa() {
    const AttentionSpec& a = spec_.attention;
    U32("attention.head_count", a.num_q_heads);
    U32("attention.head_count_kv", a.num_kv_heads);
    U32("attention.key_length", a.head_dim);
    U32("attention.value_length", a.head_dim);
    U32("rope.dimension_count", a.rope.dim);
    if (spec_.layers.front().window > 0) U32("attention.sliding_window", spec_.layers.front().window);
  }

  // Keys as absorbed attention sees them: one head of the latent and the rotated part.
  void Mla() {
    const AttentionSpec& a = spec_.attention;
    U32("attention.head_count", a.num_q_heads);
    U32("attention.head_count_kv", 1);
    U32("attention.q_lora_rank", a.q_lora_rank);  // 0 too: llama.cpp does without the key for V2-Lite's shape only
    U32("attention.kv_lora_rank", a.kv_lora_rank);
    U32("attention.key_length", a.kv_lora_rank + a.rope_dim);
    U32("attention.value_length", a.kv_lora_rank);
    U32("attention.key_length_mla", a.q_head_dim());
    U32("attention.value_length_mla", a.v_dim);
    U32("rope.dimension_count", a.rope_dim);
  }

  Status Scaling() {
    ASSIGN_OR_RETURN(const RopeScaling scaling, HfRopeScaling(config_));
    // Llama-3's travels as the tensor rope_freqs.weight.
    if (scaling.kind == RopeScalingKind::kNone || scaling.kind == RopeScalingKind::kLlama3) return Status::Ok();
    const bool yarn = scaling.kind == RopeScalingKind::kYarn;
    writer_.SetString(arch_ + ".rope.scaling.type", yarn ? "yarn" : "linear");
    F32("rope.scaling.factor", scaling.factor);
    if (!yarn) return Status::Ok();
    U32("rope.scaling.original_context_length", scaling.original_context);
    F32("rope.scaling.yarn_beta_fast", scaling.beta_fast);
    F32("rope.scaling.yarn_beta_slow", scaling.beta_slow);
    const bool mla = spec_.attention.kind == AttentionKind::kMla;
    if (mla) F32("rope.scaling.yarn_log_multiplier", 0.1 * scaling.mscale_all_dim);
    // The keys above imply a factor on cos and sin: 1 for latent attention, YaRN's own otherwise.
    const double implied = mla ? 1.0 : 0.1 * std::log(scaling.factor) + 1.0;
    if (std::abs(spec_.attention.rope.mscale - implied) > 1e-5) return Unsayable("this attention_factor of YaRN");
    return Status::Ok();
  }

  void Experts() {
    const MoeSpec& moe = spec_.moe;
    if (moe.num_experts == 0) return;
    U32("expert_count", moe.num_experts);
    U32("expert_used_count", moe.top_k);
    if (arch_ == "llama") return;  // their width is feed_forward_length
    U32("expert_feed_forward_length", moe.intermediate);
    if (!HasDeepseekExperts()) return;
    int32_t first = 0;
    while (first < spec_.num_layers && !spec_.layers[static_cast<size_t>(first)].moe) ++first;
    U32("leading_dense_block_count", first);
    U32("expert_shared_count", moe.shared_intermediate / moe.intermediate);
    F32("expert_weights_scale", moe.scaling);
    writer_.SetBool(arch_ + ".expert_weights_norm", moe.normalize);
    U32("expert_gating_func", moe.score == MoeScore::kSigmoid ? 2 : 1);
    if (moe.group_score != MoeGroupScore::kNone) {
      U32("expert_group_count", moe.num_groups);
      U32("expert_group_used_count", moe.top_k_groups);
    }
    if (spec_.num_mtp_layers > 0) U32("nextn_predict_layers", spec_.num_mtp_layers);
  }

  const HfConfig& config_;
  const ModelSpec& spec_;
  const std::string arch_;
  GgufWriter& writer_;
};

}  // namespace

Status SetHfMetadata(const HfConfig& config, const ModelSpec& spec, const std::string& name, GgufWriter* writer) {
  return Metadata(config, spec, writer).Set(name);
}

}  // namespace cachalot
