// Which layers share a pool of KV blocks, and what lies in a block.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "device/exec_context.h"
#include "kernels/common/paged_kv.h"
#include "model/model_spec.h"
#include "quant/kv_format.h"

namespace cachalot {

// Which layers keep their KV in codes. Sliding windows are exempt unless named: their caches are small, and their tokens
// are read often. So are MTP layers, whose drafts are verified anyway.
struct KvTypes {
  KvScheme scheme;  // of the layers that see everything
  std::vector<std::pair<int32_t, KvScheme>> layers;  // of these instead; the last entry of a layer counts
  // So many first tokens of a sequence stay exact (SinkScheme), in blocks of a group of their own; SinkTokens of the blocks'
  // size.
  int32_t sink_tokens = 0;

  bool any_quantised() const;
  KvScheme Of(const ModelSpec& spec, int32_t layer) const;
  // Everything that the bits depend on; empty: all plain.
  std::string Name() const;
};

// The next number that quantised groups can keep apart: whole blocks, whole steps of the kernels.
int32_t SinkTokens(int32_t wanted, int32_t block_tokens);
// Whether the model's heads can be kept that way.
Status CheckKvTypes(const KvTypes& types, const ModelSpec& spec);

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
  KvScheme scheme;      // quantised: the dtype below says nothing
  // It keeps positions [first_token, end_token) only (KvGroupInfo). What a quantised group does not keep, sinks, is kept by
  // group sink_group.
  int32_t first_token = 0;
  int32_t end_token = std::numeric_limits<int32_t>::max();
  int32_t sink_group = -1;

  KvVectors vectors() const { return {k_dim, v_dim, v_in_k ? k_dim - v_dim : 0, v_in_k}; }
  KvPlanes Planes(int32_t block_tokens) const {  // of a plain group: none
    return scheme.quantised() ? PlanKvPlanes(scheme, vectors(), block_tokens) : KvPlanes{};
  }
  int64_t TokenValues() const { return int64_t{num_kv_heads} * (k_dim + (v_in_k ? 0 : v_dim)); }  // of one layer
  int64_t LayerBlockBytes(DType dtype, int32_t block_tokens) const {
    if (scheme.quantised()) return num_kv_heads * Planes(block_tokens).head_bytes;
    return DTypeBytes(dtype, TokenValues() * block_tokens);
  }
  // Of a token in all layers, as attention reads it.
  int64_t TokenBytes(DType dtype) const {
    const int64_t of_layer = scheme.quantised() ? int64_t{num_kv_heads} * Planes(1).token_bytes() : DTypeBytes(dtype, TokenValues());
    return of_layer * static_cast<int64_t>(layers.size());
  }
  int64_t BlockBytes(DType dtype, int32_t block_tokens) const {
    return LayerBlockBytes(dtype, block_tokens) * static_cast<int64_t>(layers.size());
  }
};

// Groups by window, home and type, each group of codes without a window followed by one of its sinks; MTP layers (when loaded) have one of their own, always the last. The last num_cuda_layers
// layers (and MTP, if there is any of them) live on the GPU.
std::vector<KvGroupSpec> KvGroups(const ModelSpec& spec, bool with_mtp, int32_t num_cuda_layers = 0,
                                  const KvTypes& types = {});

// Layer number `idx` of the group, without block tables and, if it is quantised, without planes.
PagedKv LayerView(const KvGroupSpec& group, std::byte* pool, DType dtype, int32_t block_tokens, size_t idx);

}  // namespace cachalot
