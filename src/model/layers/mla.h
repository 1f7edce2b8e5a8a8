// Multi-head latent attention. The cache holds, per token, the normalised latent and the rotated shared key.
//
// Two forms of the same attention (reference: DeepSeek-V2, arXiv 2405.04434):
// - absorbed: queries are carried into the latent space (W_UKᵀ q) and all heads read the latents themselves. Cheap when
//   few queries meet a long cache: decode, short chunks.
// - expanded: the cached latents are blown up to full keys and values per head once per step. Cheaper when many queries
//   share the blow-up: long prefills.
// Chosen per sequence by cost; --deterministic always takes the absorbed form, so that chunking cannot change a bit.
#pragma once

#include <vector>

#include "model/forward_context.h"
#include "model/layers/linear.h"
#include "model/model_spec.h"

namespace cachalot {

enum class MlaForm : uint8_t { kByCost, kAbsorbed, kExpanded };

class MlaLayer {
 public:
  static Result<MlaLayer> Build(WeightReader* reader, const ModelSpec& spec, int32_t layer);

  // residual [num_tokens, hidden] += attention(x); x is the normalised input, same shape.
  void Run(const ForwardContext& fwd, const ModelSpec& spec, int32_t window, const PagedKv& kv, MlaForm form,
           const float* x, float* residual) const;

  static int64_t WorkspaceBytes(const ModelSpec& spec, int64_t max_tokens, int32_t max_context, int num_threads);

 private:
  // Sets k_b_, v_b_ and kv_b_ from whichever of them the source has.
  Status BuildKvB(WeightReader* reader, const ModelSpec& spec, int32_t layer);
  void RunAbsorbed(const ForwardContext& fwd, const AttentionSpec& attention, int32_t window, const PagedKv& kv,
                   std::span<const SeqSpan> spans, const float* q, int64_t q_stride, float* out) const;
  void RunExpanded(const ForwardContext& fwd, const AttentionSpec& attention, int32_t window, const PagedKv& kv,
                   const SeqSpan& span, const float* q, int64_t q_stride, float* out) const;

  Linear in_;                        // [q_a or q | kv_a] of the layer's input
  std::vector<float> q_a_norm_;      // [q_lora_rank]
  Linear q_b_;                       // empty without q_lora_rank
  std::vector<float> kv_a_norm_;     // [kv_lora_rank]
  std::vector<PackedMatrix> k_b_;    // per head [kv_lora_rank, nope_dim]: W_UKᵀ
  std::vector<PackedMatrix> v_b_;    // per head [v_dim, kv_lora_rank]: W_UV
  PackedMatrix kv_b_;                // [heads * (nope + v), kv_lora_rank], for the expanded form
  Linear o_;
};

}  // namespace cachalot
