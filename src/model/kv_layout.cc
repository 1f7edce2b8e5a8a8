#include "model/kv_layout.h"

#include <algorithm>
#include <numeric>

namespace cachalot {

bool KvTypes::any_quantised() const {
  return scheme.quantised() || std::any_of(layers.begin(), layers.end(), [](const auto& l) { return l.second.quantised(); });
}

KvScheme KvTypes::Of(const ModelSpec& spec, int32_t layer) const {
  for (auto it = layers.rbegin(); it != layers.rend(); ++it) {
    if (it->first == layer) return it->second;
  }
  return spec.layers[static_cast<size_t>(layer)].window > 0 ? KvScheme{} : scheme;
}

std::string KvTypes::Name() const {
  if (!any_quantised()) return "";
  std::string name = KvSchemeName(scheme);
  for (const auto& [layer, own] : layers) name += fmt::format(",{}={}", layer, KvSchemeName(own));
  if (sink_tokens > 0) name += fmt::format(",sinks={}", sink_tokens);
  return name;
}

int32_t SinkTokens(int32_t wanted, int32_t block_tokens) {
  const int32_t step = std::lcm(block_tokens, 8);
  return (wanted + step - 1) / step * step;
}

Status CheckKvTypes(const KvTypes& types, const ModelSpec& spec) {
  for (const auto& [layer, scheme] : types.layers) {
    if (layer < 0 || layer >= spec.num_layers) {
      return InvalidArgument("KV type of layer {}: the model has layers 0 to {}", layer, spec.num_layers - 1);
    }
  }
  if (!types.any_quantised()) return Status::Ok();
  for (const KvGroupSpec& group : KvGroups(spec, /*with_mtp=*/false)) {
    if (std::max(group.k_dim, group.v_dim) > kMaxKvDim) {
      return Unsupported("a quantised KV cache holds keys of up to {} values, and this model's have {}", kMaxKvDim, group.k_dim);
    }
  }
  return Status::Ok();
}

std::vector<KvGroupSpec> KvGroups(const ModelSpec& spec, bool with_mtp, int32_t num_cuda_layers, const KvTypes& types) {
  const AttentionSpec& attention = spec.attention;
  const auto make = [&](int32_t window, DeviceType home, const KvScheme& scheme) {
    KvGroupSpec group;
    group.scheme = scheme;
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
    const KvScheme scheme = types.Of(spec, i);
    auto it = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return group.window == window && group.home == home && group.scheme == scheme;
    });
    if (it == groups.end()) {
      groups.push_back(make(window, home, scheme));
      it = groups.end() - 1;
      it->name = window > 0 ? "window" + std::to_string(window) : "full";
      if (home == DeviceType::kCpu && num_cuda_layers > 0) it->name += "-cpu";
      if (scheme.quantised()) it->name += fmt::format("-{}", KvSchemeName(scheme));
    }
    it->layers.push_back(i);
  }
  for (size_t g = 0; g < groups.size() && types.sink_tokens > 0; ++g) {
    if (!groups[g].scheme.quantised() || groups[g].window > 0 || groups[g].end_token == types.sink_tokens) continue;
    KvGroupSpec sinks = groups[g];
    sinks.name = "sinks-" + sinks.name;
    sinks.scheme = SinkScheme(sinks.scheme);
    sinks.end_token = groups[g].first_token = types.sink_tokens;
    groups[g].sink_group = static_cast<int32_t>(g) + 1;
    groups.insert(groups.begin() + static_cast<ptrdiff_t>(g) + 1, std::move(sinks));
  }
  if (with_mtp && spec.num_mtp_layers > 0) {
    groups.push_back(make(0, num_cuda_layers > 0 ? DeviceType::kCuda : DeviceType::kCpu, {}));
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
  if (group.scheme.quantised()) return view;
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
