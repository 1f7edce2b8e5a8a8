// ModelSpec: everything that the forward pass must know about a model, as numbers. An architecture (model/arch/) fills
// it from a file's configuration; nothing else asks which architecture a model has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/moe_route/moe_route.h"
#include "kernels/rope_append/rope_append.h"

namespace cachalot {

enum class AttentionKind : uint8_t {
  kGqa,  // grouped queries over full keys and values (Ainslie et al. 2023; also MHA and MQA)
  kMla,  // multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)
};

struct RopeSpec {
  RopeStyle style = RopeStyle::kHalf;
  int32_t dim = 0;               // rotated dimensions of a head
  std::vector<float> inv_freq;   // [dim/2], scaling already applied
  float mscale = 1.0f;           // multiplies cos and sin
};

struct AttentionSpec {
  AttentionKind kind = AttentionKind::kGqa;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;      // GQA
  int32_t head_dim = 0;          // GQA: of queries, keys and values
  bool qkv_bias = false;
  bool qk_norm = false;          // RMSNorm of each q and k head before RoPE (Qwen3)
  float scale = 0.0f;            // of the scores, YaRN's correction included
  RopeSpec rope;
  // MLA
  int32_t q_lora_rank = 0;       // 0: a plain q projection
  int32_t kv_lora_rank = 0;
  int32_t nope_dim = 0;
  int32_t rope_dim = 0;
  int32_t v_dim = 0;
  float latent_norm_eps = 1e-6f;

  int32_t q_head_dim() const { return kind == AttentionKind::kMla ? nope_dim + rope_dim : head_dim; }
  int32_t v_head_dim() const { return kind == AttentionKind::kMla ? v_dim : head_dim; }
};

struct MoeSpec {
  int32_t num_experts = 0;       // 0: no MoE layers
  int32_t top_k = 0;
  int32_t intermediate = 0;      // of one routed expert
  int32_t shared_intermediate = 0;  // of all shared experts together; 0: none
  MoeScore score = MoeScore::kSoftmax;
  MoeGroupScore group_score = MoeGroupScore::kNone;
  int32_t num_groups = 1;
  int32_t top_k_groups = 1;
  bool choice_bias = false;
  bool normalize = false;
  float scaling = 1.0f;
};

struct LayerSpec {
  bool moe = false;
  int32_t window = 0;            // sliding window of this layer's attention; 0: none
};

struct ModelSpec {
  std::string architecture;      // our name: "llama", "deepseek-v3"; for people
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t num_layers = 0;        // without MTP layers
  int32_t intermediate = 0;      // of the dense feed-forward layers
  int32_t max_context = 0;       // positions that the model was made for
  float norm_eps = 1e-6f;
  bool tied_embeddings = false;
  AttentionSpec attention;
  MoeSpec moe;
  std::vector<LayerSpec> layers; // [num_layers + num_mtp_layers]
  int32_t num_mtp_layers = 0;

  int32_t num_all_layers() const { return num_layers + num_mtp_layers; }
  int32_t num_moe_layers() const;  // without MTP
};

// Sizes that must hold together (head counts, groups, ranks, even rope dims, limits against absurd values), for a spec
// from any source: the one-line error names the field and the limit. `place` is the file.
Status ValidateSpec(const ModelSpec& spec, const std::string& place);

}  // namespace cachalot
