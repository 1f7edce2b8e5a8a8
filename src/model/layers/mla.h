// Multi-head latent attention. The cache holds, per token, the normalised latent and the rotated shared key.
//
// Two forms of the same attention (reference: DeepSeek-V2, arXiv 2405.04434):
// - absorbed: queries are carried into the latent space (W_UKᵀ q) and all heads read the latents themselves. Cheap when
//   few queries meet a long cache: decode, short chunks.
// - expanded: the cached latents are blown up to full keys and values per head once per step. Cheaper when many queries
//   share the blow-up: long prefills.
// Chosen per sequence by cost, by whoever lays out the batch: sequences in the absorbed form come first (MlaExpands below).
// --deterministic always takes the absorbed form, so that chunking cannot change a bit.
#pragma once

#include <vector>

#include "model/forward_context.h"
#include "model/layers/linear.h"
#include "model/model_spec.h"

namespace cachalot {

enum class MlaForm : uint8_t { kByCost, kAbsorbed, kExpanded };

// The fewest new tokens of a sequence for which the expanded form is wanted.
int32_t MlaExpandMinTokens(const AttentionSpec& attention, MlaForm form);
// Whether a sequence with `q_len` new tokens and `kv_len` in the cache is to be computed in the expanded form.
bool MlaExpands(const AttentionSpec& attention, MlaForm form, int32_t q_len, int32_t kv_len);

class MlaLayer {
 public:
  static Result<MlaLayer> Build(WeightReader* reader, const ModelSpec& spec, int32_t layer);

  // residual [num_tokens, hidden] += attention(input)
  void Run(const ForwardContext& fwd, const ModelSpec& spec, int32_t window, const PagedKv& kv, NormedInput* input,
           float* residual) const;

  int64_t weight_bytes() const {  // of the absorbed form
    return in_.weight_bytes() + q_b_.weight_bytes() + o_.weight_bytes() + k_b_.data_bytes() + v_b_.data_bytes();
  }
  static int64_t WorkspaceBytes(const ModelSpec& spec, int64_t max_tokens, int32_t max_context, int num_threads);

 private:
  // Sets k_b_, v_b_ and kv_b_ from whichever of them the source has.
  Status BuildKvB(WeightReader* reader, const ModelSpec& spec, int32_t layer);
  // The rows [0, num_rows), in the absorbed form. q_latent: [num_rows, heads, kv.k_dim] with the rotated parts of q behind what
  // this puts there, or null.
  void RunAbsorbed(const ForwardContext& fwd, const AttentionSpec& attention, int32_t window, const PagedKv& kv,
                   std::span<const SeqSpan> spans, int64_t num_rows, const float* q, int64_t q_stride, float* q_latent,
                   float* out) const;
  void RunExpanded(const ForwardContext& fwd, const AttentionSpec& attention, int32_t window, const PagedKv& kv,
                   const SeqSpan& span, const float* q, int64_t q_stride, float* out) const;
  // On the GPU: all of the step's expanded spans in one go (mla_expand_cuda.h).
  void RunExpandedOnCuda(const ForwardContext& fwd, const AttentionSpec& attention, int32_t window, const PagedKv& kv,
                         const float* q, int64_t q_stride, float* out) const;

  Linear in_;                        // [q_a or q | kv_a] of the layer's input
  FloatArray q_a_norm_;              // [q_lora_rank]
  Linear q_b_;                       // empty without q_lora_rank
  FloatArray kv_a_norm_;             // [kv_lora_rank]
  HeadMatrices k_b_;                 // per head [kv_lora_rank, nope_dim]: W_UKᵀ
  HeadMatrices v_b_;                 // per head [v_dim, kv_lora_rank]: W_UV
  PackedMatrix kv_b_;                // [heads * (nope + v), kv_lora_rank], for the expanded form
  Linear o_;
};

}  // namespace cachalot
