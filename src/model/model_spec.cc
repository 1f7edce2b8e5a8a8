#include "model/model_spec.h"

#include <algorithm>

namespace cachalot {

int32_t ModelSpec::num_moe_layers() const {
  return static_cast<int32_t>(std::count_if(layers.begin(), layers.begin() + num_layers,
                                            [](const LayerSpec& layer) { return layer.moe; }));
}

Status ValidateSpec(const ModelSpec& spec, const std::string& place) {
  const AttentionSpec& attention = spec.attention;
  if (static_cast<int32_t>(spec.layers.size()) != spec.num_all_layers()) {
    return Internal("{}: {} layers described, {} expected", place, spec.layers.size(), spec.num_all_layers());
  }
  if (attention.rope.dim % 2 != 0 || attention.rope.dim > attention.q_head_dim()) {
    return InvalidArgument("{}: {} rotated dimensions: must be even and at most the head's {}", place,
                           attention.rope.dim, attention.q_head_dim());
  }
  if (attention.kind == AttentionKind::kGqa && attention.num_q_heads % attention.num_kv_heads != 0) {
    return InvalidArgument("{}: {} attention heads are no multiple of {} key/value heads", place,
                           attention.num_q_heads, attention.num_kv_heads);
  }
  const bool any_dense = std::any_of(spec.layers.begin(), spec.layers.end(), [](const LayerSpec& l) { return !l.moe; });
  const bool any_moe = std::any_of(spec.layers.begin(), spec.layers.end(), [](const LayerSpec& l) { return l.moe; });
  if (any_dense && spec.intermediate <= 0) {
    return InvalidArgument("{}: the feed-forward width is {}, must be positive", place, spec.intermediate);
  }
  const MoeSpec& moe = spec.moe;
  if (any_moe && moe.num_experts <= 0) return InvalidArgument("{}: MoE layers, but {} experts", place, moe.num_experts);
  if (moe.num_experts > 0) {
    if (moe.num_experts % moe.num_groups != 0) {
      return InvalidArgument("{}: {} experts are no multiple of {} groups", place, moe.num_experts, moe.num_groups);
    }
    const int32_t per_group = moe.num_experts / moe.num_groups;
    const int32_t choosable = moe.group_score == MoeGroupScore::kNone ? moe.num_experts : per_group * moe.top_k_groups;
    if (moe.top_k > choosable) {
      return InvalidArgument("{}: top {} experts, but only {} can be chosen ({} of {} groups of {})", place, moe.top_k,
                             choosable, moe.top_k_groups, moe.num_groups, per_group);
    }
    if (moe.group_score == MoeGroupScore::kTop2Sum && per_group < 2) {
      return InvalidArgument("{}: groups of {} expert: scoring by the two best needs 2", place, per_group);
    }
  }
  return Status::Ok();
}

}  // namespace cachalot
