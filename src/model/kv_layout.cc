#include "model/kv_layout.h"

#include <algorithm>

namespace cachalot {

std::vector<KvGroupSpec> KvGroups(const ModelSpec& spec, bool with_mtp, int32_t num_cuda_layers) {
  const AttentionSpec& attention = spec.attention;
  const auto make = [&](int32_t window, DeviceType home) {
    KvGroupSpec group;
    group.window = window;
    group.home = home;
    if (attention.kind == AttentionKind::kMla) {
      group.num_kv_heads = 1;
      group.k_dim = attention.kv_lora_rank + attention.rope_dim;
      group.v_dim = attention.kv_lora_rank;
      group.v_in_k = true;
    } else {
      group.num_kv_heads = attention.num_kv_heads;
      group.k_dim = group.v_dim = attention.head_dim;
    }
    return group;
  };
  std::vector<KvGroupSpec> groups;
  for (int32_t i = 0; i < spec.num_layers; ++i) {
    const int32_t window = spec.layers[static_cast<size_t>(i)].window;
    const DeviceType home = i >= spec.num_layers - num_cuda_layers ? DeviceType::kCuda : DeviceType::kCpu;
    auto it = std::find_if(groups.begin(), groups.end(),
                           [&](const auto& group) { return group.window == window && group.home == home; });
    if (it == groups.end()) {
      groups.push_back(make(window, home));
      it = groups.end() - 1;
      it->name = window > 0 ? "window" + std::to_string(window) : "full";
      if (home == DeviceType::kCpu && num_cuda_layers > 0) it->name += "-cpu";
    }
    it->layers.push_back(i);
  }
  if (with_mtp && spec.num_mtp_layers > 0) {
    groups.push_back(make(0, num_cuda_layers > 0 ? DeviceType::kCuda : DeviceType::kCpu));
    groups.back().name = "mtp";
    for (int32_t i = 0; i < spec.num_mtp_layers; ++i) groups.back().layers.push_back(spec.num_layers + i);
  }
  return groups;
}

PagedKv LayerView(const KvGroupSpec& group, std::byte* pool, DType dtype, int32_t block_tokens, size_t idx) {
  PagedKv view;
  view.data = pool + group.LayerBlockBytes(dtype, block_tokens) * static_cast<int64_t>(idx);
  view.dtype = dtype;
  view.block_tokens = block_tokens;
  view.num_kv_heads = group.num_kv_heads;
  view.k_dim = group.k_dim;
  view.v_dim = group.v_dim;
  view.block_bytes = group.BlockBytes(dtype, block_tokens);
  view.k_head_stride = int64_t{block_tokens} * group.k_dim;
  if (group.v_in_k) {
    view.v_offset = 0;
    view.v_head_stride = view.k_head_stride;
    view.v_token_stride = group.k_dim;
  } else {
    view.v_offset = view.k_head_stride * group.num_kv_heads;
    view.v_head_stride = int64_t{block_tokens} * group.v_dim;
    view.v_token_stride = group.v_dim;
  }
  return view;
}

}  // namespace cachalot
