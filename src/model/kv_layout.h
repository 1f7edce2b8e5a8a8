// Which layers share a pool of KV blocks, and what lies in a block.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/exec_context.h"
#include "kernels/common/paged_kv.h"
#include "model/model_spec.h"

namespace cachalot {

// A KV group: layers whose sequences keep the same tokens. A block holds block_tokens tokens of all its layers, layer
// after layer; within a layer as paged_kv.h says.
struct KvGroupSpec {
  std::string name;
  std::vector<int32_t> layers;
  int32_t window = 0;
  DeviceType home = DeviceType::kCpu;
  int32_t num_kv_heads = 0;
  int32_t k_dim = 0;
  int32_t v_dim = 0;
  bool v_in_k = false;  // MLA: the value is the beginning of the key

  int64_t TokenValues() const { return int64_t{num_kv_heads} * (k_dim + (v_in_k ? 0 : v_dim)); }  // of one layer
  int64_t LayerBlockBytes(DType dtype, int32_t block_tokens) const {
    return DTypeBytes(dtype, TokenValues() * block_tokens);
  }
  int64_t BlockBytes(DType dtype, int32_t block_tokens) const {
    return LayerBlockBytes(dtype, block_tokens) * static_cast<int64_t>(layers.size());
  }
};

// Groups by window and home; MTP layers (when loaded) have one of their own, always the last. The last num_cuda_layers
// layers (and MTP, if there is any of them) live on the GPU.
std::vector<KvGroupSpec> KvGroups(const ModelSpec& spec, bool with_mtp, int32_t num_cuda_layers = 0);

// Layer number `idx` of the group, without block tables.
PagedKv LayerView(const KvGroupSpec& group, std::byte* pool, DType dtype, int32_t block_tokens, size_t idx);

}  // namespace cachalot
