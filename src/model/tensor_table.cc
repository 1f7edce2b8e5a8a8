#include "model/tensor_table.h"

#include <fmt/format.h>

#include "base/check.h"

namespace cachalot {
namespace {

struct Row {
  TensorRole role;
  const char* hf[2];    // {0} is the layer, {1} the expert; a second spelling or null
  const char* gguf[2];
};

using enum TensorRole;
constexpr Row kRows[] = {
    {kEmbedding, {"model.embed_tokens.weight"}, {"token_embd.weight"}},
    {kFinalNorm, {"model.norm.weight"}, {"output_norm.weight"}},
    {kHead, {"lm_head.weight"}, {"output.weight"}},
    {kAttentionNorm, {"model.layers.{0}.input_layernorm.weight"}, {"blk.{0}.attn_norm.weight"}},
    {kFfnNorm, {"model.layers.{0}.post_attention_layernorm.weight"}, {"blk.{0}.ffn_norm.weight"}},
    {kQ, {"model.layers.{0}.self_attn.q_proj.weight"}, {"blk.{0}.attn_q.weight"}},
    {kK, {"model.layers.{0}.self_attn.k_proj.weight"}, {"blk.{0}.attn_k.weight"}},
    {kV, {"model.layers.{0}.self_attn.v_proj.weight"}, {"blk.{0}.attn_v.weight"}},
    {kO, {"model.layers.{0}.self_attn.o_proj.weight"}, {"blk.{0}.attn_output.weight"}},
    {kQBias, {"model.layers.{0}.self_attn.q_proj.bias"}, {"blk.{0}.attn_q.bias"}},
    {kKBias, {"model.layers.{0}.self_attn.k_proj.bias"}, {"blk.{0}.attn_k.bias"}},
    {kVBias, {"model.layers.{0}.self_attn.v_proj.bias"}, {"blk.{0}.attn_v.bias"}},
    {kQNorm, {"model.layers.{0}.self_attn.q_norm.weight"}, {"blk.{0}.attn_q_norm.weight"}},
    {kKNorm, {"model.layers.{0}.self_attn.k_norm.weight"}, {"blk.{0}.attn_k_norm.weight"}},
    {kQA, {"model.layers.{0}.self_attn.q_a_proj.weight"}, {"blk.{0}.attn_q_a.weight"}},
    {kQANorm, {"model.layers.{0}.self_attn.q_a_layernorm.weight"}, {"blk.{0}.attn_q_a_norm.weight"}},
    {kQB, {"model.layers.{0}.self_attn.q_b_proj.weight"}, {"blk.{0}.attn_q_b.weight"}},
    {kKvA, {"model.layers.{0}.self_attn.kv_a_proj_with_mqa.weight"}, {"blk.{0}.attn_kv_a_mqa.weight"}},
    {kKvANorm, {"model.layers.{0}.self_attn.kv_a_layernorm.weight"}, {"blk.{0}.attn_kv_a_norm.weight"}},
    {kKvB, {"model.layers.{0}.self_attn.kv_b_proj.weight"}, {"blk.{0}.attn_kv_b.weight"}},
    {kKB, {}, {"blk.{0}.attn_k_b.weight"}},
    {kVB, {}, {"blk.{0}.attn_v_b.weight"}},
    {kGate, {"model.layers.{0}.mlp.gate_proj.weight"}, {"blk.{0}.ffn_gate.weight"}},
    {kUp, {"model.layers.{0}.mlp.up_proj.weight"}, {"blk.{0}.ffn_up.weight"}},
    {kDown, {"model.layers.{0}.mlp.down_proj.weight"}, {"blk.{0}.ffn_down.weight"}},
    {kRouter, {"model.layers.{0}.mlp.gate.weight", "model.layers.{0}.block_sparse_moe.gate.weight"},
     {"blk.{0}.ffn_gate_inp.weight"}},
    {kRouterBias, {"model.layers.{0}.mlp.gate.e_score_correction_bias"}, {"blk.{0}.exp_probs_b.bias", "blk.{0}.exp_probs_b"}},
    {kExpertGate, {"model.layers.{0}.mlp.experts.{1}.gate_proj.weight", "model.layers.{0}.block_sparse_moe.experts.{1}.w1.weight"},
     {"blk.{0}.ffn_gate_exps.weight"}},
    {kExpertUp, {"model.layers.{0}.mlp.experts.{1}.up_proj.weight", "model.layers.{0}.block_sparse_moe.experts.{1}.w3.weight"},
     {"blk.{0}.ffn_up_exps.weight"}},
    {kExpertDown, {"model.layers.{0}.mlp.experts.{1}.down_proj.weight", "model.layers.{0}.block_sparse_moe.experts.{1}.w2.weight"},
     {"blk.{0}.ffn_down_exps.weight"}},
    {kSharedGate, {"model.layers.{0}.mlp.shared_experts.gate_proj.weight"}, {"blk.{0}.ffn_gate_shexp.weight"}},
    {kSharedUp, {"model.layers.{0}.mlp.shared_experts.up_proj.weight"}, {"blk.{0}.ffn_up_shexp.weight"}},
    {kSharedDown, {"model.layers.{0}.mlp.shared_experts.down_proj.weight"}, {"blk.{0}.ffn_down_shexp.weight"}},
    {kMtpEmbeddingNorm, {"model.layers.{0}.enorm.weight"}, {"blk.{0}.nextn.enorm.weight"}},
    {kMtpHiddenNorm, {"model.layers.{0}.hnorm.weight"}, {"blk.{0}.nextn.hnorm.weight"}},
    {kMtpProjection, {"model.layers.{0}.eh_proj.weight"}, {"blk.{0}.nextn.eh_proj.weight"}},
    {kMtpNorm, {"model.layers.{0}.shared_head.norm.weight"}, {"blk.{0}.nextn.shared_head_norm.weight"}},
    {kMtpEmbedding, {"model.layers.{0}.embed_tokens.weight"}, {"blk.{0}.nextn.embed_tokens.weight"}},
    {kMtpHead, {"model.layers.{0}.shared_head.head.weight"}, {"blk.{0}.nextn.shared_head_head.weight"}},
};
static_assert(sizeof(kRows) / sizeof(kRows[0]) == kNumTensorRoles);

}  // namespace

std::vector<std::string> TensorNames(TensorRole role, SourceNaming naming, int32_t layer, int32_t expert) {
  const Row& row = kRows[static_cast<int>(role)];
  CHECK(row.role == role);
  std::vector<std::string> names;
  for (const char* pattern : naming == SourceNaming::kGguf ? row.gguf : row.hf) {
    if (pattern != nullptr) names.push_back(fmt::format(fmt::runtime(pattern), layer, expert));
  }
  return names;
}

}  // namespace cachalot
