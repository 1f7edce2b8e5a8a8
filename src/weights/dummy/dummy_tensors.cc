#include "weights/dummy/dummy_tensors.h"

#include <cmath>

namespace cachalot {
namespace {

constexpr float kScalePerDeviation = 4.5f / 448.0f;  // an FP8 block can hold ±4.5 deviations

struct RoleNames {
  const char* hub;
  const char* gguf;
};

// Mixtral alone spells its experts differently; see Name().
// clang-format off
RoleNames NamesOf(DummyRole role) {
  switch (role) {
    case DummyRole::kEmbed: return {"model.embed_tokens.weight", "token_embd.weight"};
    case DummyRole::kFinalNorm: return {"model.norm.weight", "output_norm.weight"};
    case DummyRole::kHead: return {"lm_head.weight", "output.weight"};
    case DummyRole::kAttnNorm: return {"input_layernorm.weight", "attn_norm.weight"};
    case DummyRole::kFfnNorm: return {"post_attention_layernorm.weight", "ffn_norm.weight"};
    case DummyRole::kQ: return {"self_attn.q_proj.weight", "attn_q.weight"};
    case DummyRole::kK: return {"self_attn.k_proj.weight", "attn_k.weight"};
    case DummyRole::kV: return {"self_attn.v_proj.weight", "attn_v.weight"};
    case DummyRole::kO: return {"self_attn.o_proj.weight", "attn_output.weight"};
    case DummyRole::kQBias: return {"self_attn.q_proj.bias", "attn_q.bias"};
    case DummyRole::kKBias: return {"self_attn.k_proj.bias", "attn_k.bias"};
    case DummyRole::kVBias: return {"self_attn.v_proj.bias", "attn_v.bias"};
    case DummyRole::kQNorm: return {"self_attn.q_norm.weight", "attn_q_norm.weight"};
    case DummyRole::kKNorm: return {"self_attn.k_norm.weight", "attn_k_norm.weight"};
    case DummyRole::kQA: return {"self_attn.q_a_proj.weight", "attn_q_a.weight"};
    case DummyRole::kQANorm: return {"self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight"};
    case DummyRole::kQB: return {"self_attn.q_b_proj.weight", "attn_q_b.weight"};
    case DummyRole::kKvA: return {"self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"};
    case DummyRole::kKvANorm: return {"self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"};
    case DummyRole::kKvB: return {"self_attn.kv_b_proj.weight", ""};  // split into attn_k_b and attn_v_b
    case DummyRole::kRouter: return {"mlp.gate.weight", "ffn_gate_inp.weight"};
    case DummyRole::kRouterBias: return {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"};
    case DummyRole::kGate: return {"mlp.gate_proj.weight", "ffn_gate.weight"};
    case DummyRole::kUp: return {"mlp.up_proj.weight", "ffn_up.weight"};
    case DummyRole::kDown: return {"mlp.down_proj.weight", "ffn_down.weight"};
    case DummyRole::kExpertGate: return {"gate_proj.weight", "ffn_gate_exps.weight"};
    case DummyRole::kExpertUp: return {"up_proj.weight", "ffn_up_exps.weight"};
    case DummyRole::kExpertDown: return {"down_proj.weight", "ffn_down_exps.weight"};
    case DummyRole::kSharedGate: return {"mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"};
    case DummyRole::kSharedUp: return {"mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"};
    case DummyRole::kSharedDown: return {"mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"};
    case DummyRole::kMtpEmbedNorm: return {"enorm.weight", ""};
    case DummyRole::kMtpHiddenNorm: return {"hnorm.weight", ""};
    case DummyRole::kMtpProjection: return {"eh_proj.weight", ""};
    case DummyRole::kMtpFinalNorm: return {"shared_head.norm.weight", ""};
    case DummyRole::kBlockScale: return {"", ""};
  }
  return {"", ""};
}
// clang-format on

// Collects the tensors of one model in file order.
class Lister {
 public:
  Lister(const DummySpec& spec, DType type) : spec_(spec), type_(type) {}

  std::vector<DummyTensor> List() {
    // Logits with a deviation of about 2.5 make a sampled text less uniform than white noise.
    const float head_std = 2.5f / std::sqrt(static_cast<float>(spec_.hidden));
    Matrix(DummyRole::kEmbed, spec_.vocab_size, spec_.hidden, spec_.tied ? head_std : 1.0f);
    for (layer_ = 0; layer_ < spec_.layers + spec_.mtp_layers; ++layer_) Layer();
    layer_ = -1;
    Vector(DummyRole::kFinalNorm, spec_.hidden, 1.0f, 0.05f);
    if (!spec_.tied) Matrix(DummyRole::kHead, spec_.vocab_size, spec_.hidden, head_std);
    return std::move(tensors_);
  }

 private:
  void Layer() {
    const bool mtp = layer_ >= spec_.layers;
    if (mtp) {
      Vector(DummyRole::kMtpEmbedNorm, spec_.hidden, 1.0f, 0.05f);
      Vector(DummyRole::kMtpHiddenNorm, spec_.hidden, 1.0f, 0.05f);
      Linear(DummyRole::kMtpProjection, spec_.hidden, 2 * spec_.hidden);
    }
    Vector(DummyRole::kAttnNorm, spec_.hidden, 1.0f, 0.05f);
    spec_.mla() ? MlaAttention() : Attention();
    Vector(DummyRole::kFfnNorm, spec_.hidden, 1.0f, 0.05f);
    mtp || spec_.moe_layer(layer_) ? Experts() : Dense();
    if (mtp) Vector(DummyRole::kMtpFinalNorm, spec_.hidden, 1.0f, 0.05f);
  }

  void Attention() {
    const int64_t q_rows = int64_t{spec_.q_heads} * spec_.head_dim;
    const int64_t kv_rows = int64_t{spec_.kv_heads} * spec_.head_dim;
    Linear(DummyRole::kQ, q_rows, spec_.hidden);
    Linear(DummyRole::kK, kv_rows, spec_.hidden);
    Linear(DummyRole::kV, kv_rows, spec_.hidden);
    if (spec_.qkv_bias()) {
      Vector(DummyRole::kQBias, q_rows, 0.0f, 0.1f);
      Vector(DummyRole::kKBias, kv_rows, 0.0f, 0.1f);
      Vector(DummyRole::kVBias, kv_rows, 0.0f, 0.1f);
    }
    if (spec_.qk_norm()) {
      Vector(DummyRole::kQNorm, spec_.head_dim, 1.0f, 0.05f);
      Vector(DummyRole::kKNorm, spec_.head_dim, 1.0f, 0.05f);
    }
    Linear(DummyRole::kO, spec_.hidden, q_rows, ResidualGain());
  }

  void MlaAttention() {
    const int64_t q_rows = int64_t{spec_.q_heads} * (spec_.nope_dim + spec_.rope_dim);
    if (spec_.q_lora > 0) {
      Linear(DummyRole::kQA, spec_.q_lora, spec_.hidden);
      Vector(DummyRole::kQANorm, spec_.q_lora, 1.0f, 0.05f);
      Linear(DummyRole::kQB, q_rows, spec_.q_lora);
    } else {
      Linear(DummyRole::kQ, q_rows, spec_.hidden);
    }
    Linear(DummyRole::kKvA, spec_.kv_lora + spec_.rope_dim, spec_.hidden);
    Vector(DummyRole::kKvANorm, spec_.kv_lora, 1.0f, 0.05f);
    Linear(DummyRole::kKvB, int64_t{spec_.q_heads} * (spec_.nope_dim + spec_.v_dim), spec_.kv_lora);
    Linear(DummyRole::kO, spec_.hidden, int64_t{spec_.q_heads} * spec_.v_dim, ResidualGain());
  }

  void Dense() {
    Linear(DummyRole::kGate, spec_.intermediate, spec_.hidden);
    Linear(DummyRole::kUp, spec_.intermediate, spec_.hidden);
    Linear(DummyRole::kDown, spec_.hidden, spec_.intermediate, ResidualGain());
  }

  void Experts() {
    Matrix(DummyRole::kRouter, spec_.experts, spec_.hidden,
           1.0f / std::sqrt(static_cast<float>(spec_.hidden)), PlainType());
    if (spec_.family == DummyFamily::kDeepSeekV3) {
      // Never negative, as in a model whose biases were shifted: engines that mask groups with 0 then agree
      // with those that mask with -inf.
      Add(DummyRole::kRouterBias, {spec_.experts}, DType::kF32, 0.5f, 0.02f);
    }
    for (expert_ = 0; expert_ < spec_.experts; ++expert_) {
      Linear(DummyRole::kExpertGate, spec_.moe_intermediate, spec_.hidden);
      Linear(DummyRole::kExpertUp, spec_.moe_intermediate, spec_.hidden);
      Linear(DummyRole::kExpertDown, spec_.hidden, spec_.moe_intermediate, ResidualGain());
    }
    expert_ = -1;
    if (spec_.shared_experts == 0) return;
    const int64_t shared = int64_t{spec_.shared_experts} * spec_.moe_intermediate;
    Linear(DummyRole::kSharedGate, shared, spec_.hidden);
    Linear(DummyRole::kSharedUp, shared, spec_.hidden);
    Linear(DummyRole::kSharedDown, spec_.hidden, shared, ResidualGain());
  }

  // What is added to the residual stream is kept small, so that it grows to about twice its size over all
  // layers.
  float ResidualGain() const { return 1.0f / std::sqrt(2.0f * static_cast<float>(spec_.layers)); }

  DType PlainType() const {
    if (type_ == DType::kFP8E4M3) return DType::kBF16;
    return IsQuantized(type_) ? DType::kF32 : type_;
  }

  // A weight that maps values of deviation 1 to values of deviation `gain`. FP8 gets block scales beside it.
  void Linear(DummyRole role, int64_t rows, int64_t cols, float gain = 1.0f) {
    const float std = gain / std::sqrt(static_cast<float>(cols));
    Matrix(role, rows, cols, std, type_);
    if (type_ != DType::kFP8E4M3) return;
    tensors_.back().std = 1.0f / kScalePerDeviation;
    const std::string name = tensors_.back().info.name + "_scale_inv";
    Add(DummyRole::kBlockScale, {(rows + 127) / 128, (cols + 127) / 128}, DType::kF32,
        std * kScalePerDeviation, 0.0f);
    tensors_.back().info.name = name;
    tensors_.back().fill = DummyFill::kBlockScale;
  }

  void Matrix(DummyRole role, int64_t rows, int64_t cols, float std) {
    Matrix(role, rows, cols, std, type_ == DType::kFP8E4M3 ? DType::kBF16 : type_);
  }

  void Matrix(DummyRole role, int64_t rows, int64_t cols, float std, DType type) {
    // As quantisers do: a row that is no whole number of blocks keeps 16 bits.
    if (cols % GetDTypeInfo(type).block_size != 0) type = DType::kF16;
    Add(role, {rows, cols}, type, 0.0f, std);
  }

  void Vector(DummyRole role, int64_t size, float mean, float std) {
    Add(role, {size}, PlainType(), mean, std);
  }

  void Add(DummyRole role, std::initializer_list<int64_t> dims, DType type, float mean, float std) {
    DummyTensor tensor;
    tensor.role = role;
    tensor.layer = layer_;
    tensor.expert = expert_;
    tensor.mean = mean;
    tensor.std = std;
    tensor.info.name = Name(role);
    tensor.info.dtype = type;
    for (const int64_t dim : dims) tensor.info.dims[tensor.info.num_dims++] = dim;
    tensors_.push_back(std::move(tensor));
  }

  std::string Name(DummyRole role) const {
    const std::string suffix = NamesOf(role).hub;
    if (layer_ < 0) return suffix;
    const std::string prefix = fmt::format("model.layers.{}.", layer_);
    const bool mixtral = spec_.family == DummyFamily::kMixtral;
    if (expert_ >= 0) {
      if (!mixtral) return fmt::format("{}mlp.experts.{}.{}", prefix, expert_, suffix);
      const int number = role == DummyRole::kExpertGate ? 1 : role == DummyRole::kExpertDown ? 2 : 3;
      return fmt::format("{}block_sparse_moe.experts.{}.w{}.weight", prefix, expert_, number);
    }
    if (mixtral && role == DummyRole::kRouter) return prefix + "block_sparse_moe.gate.weight";
    return prefix + suffix;
  }

  const DummySpec& spec_;
  const DType type_;
  int32_t layer_ = -1;
  int32_t expert_ = -1;
  std::vector<DummyTensor> tensors_;
};

}  // namespace

const char* GgufNameOf(DummyRole role) {
  return NamesOf(role).gguf;
}

std::vector<DummyTensor> ListDummyTensors(const DummySpec& spec, DType type) {
  return Lister(spec, type).List();
}

}  // namespace cachalot
