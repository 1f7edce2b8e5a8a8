// The config.json of a dummy: what Hugging Face's own file of that model says, field by field.
#include <nlohmann/json.hpp>

#include "weights/dummy/dummy_spec.h"

namespace cachalot {
namespace {

using Json = nlohmann::ordered_json;

struct HubNames {
  const char* architecture;
  const char* model_type;
};

HubNames NamesOf(DummyFamily family) {
  switch (family) {
    case DummyFamily::kLlama:
      return {"LlamaForCausalLM", "llama"};
    case DummyFamily::kMistral:
      return {"MistralForCausalLM", "mistral"};
    case DummyFamily::kQwen2:
      return {"Qwen2ForCausalLM", "qwen2"};
    case DummyFamily::kQwen3:
      return {"Qwen3ForCausalLM", "qwen3"};
    case DummyFamily::kMixtral:
      return {"MixtralForCausalLM", "mixtral"};
    case DummyFamily::kQwen3Moe:
      return {"Qwen3MoeForCausalLM", "qwen3_moe"};
    case DummyFamily::kDeepSeekMoe:
      return {"DeepseekForCausalLM", "deepseek"};
    case DummyFamily::kDeepSeekV2:
      return {"DeepseekV2ForCausalLM", "deepseek_v2"};
    case DummyFamily::kDeepSeekV3:
      return {"DeepseekV3ForCausalLM", "deepseek_v3"};
  }
  return {"", ""};
}

Json RopeScalingOf(const DummySpec& spec) {
  if (spec.llama3_factor > 0) {
    return {{"rope_type", "llama3"},
            {"factor", spec.llama3_factor},
            {"low_freq_factor", 1.0},
            {"high_freq_factor", 4.0},
            {"original_max_position_embeddings", 8192}};
  }
  if (spec.yarn_factor > 0) {
    return {{"type", "yarn"},
            {"factor", spec.yarn_factor},
            {"original_max_position_embeddings", spec.yarn_original_context},
            {"beta_fast", 32},
            {"beta_slow", 1},
            {"mscale", spec.yarn_mscale},
            {"mscale_all_dim", spec.yarn_mscale}};
  }
  return nullptr;
}

void AddExperts(const DummySpec& spec, Json* config) {
  Json& json = *config;
  json["num_experts_per_tok"] = spec.top_k;
  if (spec.family == DummyFamily::kMixtral) {
    json["num_local_experts"] = spec.experts;
    return;
  }
  json["moe_intermediate_size"] = spec.moe_intermediate;
  json["norm_topk_prob"] = spec.normalize;
  if (spec.family == DummyFamily::kQwen3Moe) {
    json["num_experts"] = spec.experts;
    json["decoder_sparse_step"] = 1;
    json["mlp_only_layers"] = Json::array();
    return;
  }
  json["n_routed_experts"] = spec.experts;
  json["n_shared_experts"] = spec.shared_experts;
  json["first_k_dense_replace"] = spec.first_dense;
  json["moe_layer_freq"] = 1;
  const bool v3 = spec.family == DummyFamily::kDeepSeekV3;
  json["scoring_func"] = v3 ? "sigmoid" : "softmax";
  if (spec.family == DummyFamily::kDeepSeekMoe) return;
  json["routed_scaling_factor"] = spec.scaling;
  json["topk_method"] = v3 ? "noaux_tc" : spec.groups > 1 ? "group_limited_greedy" : "greedy";
  json["n_group"] = spec.groups;
  json["topk_group"] = spec.top_k_groups;
}

void AddMla(const DummySpec& spec, Json* config) {
  Json& json = *config;
  json["q_lora_rank"] = spec.q_lora > 0 ? Json(spec.q_lora) : Json(nullptr);
  json["kv_lora_rank"] = spec.kv_lora;
  json["qk_nope_head_dim"] = spec.nope_dim;
  json["qk_rope_head_dim"] = spec.rope_dim;
  json["v_head_dim"] = spec.v_dim;
}

}  // namespace

std::string DummyConfigJson(const DummySpec& spec, DType type, int32_t bos_id, int32_t eos_id) {
  const HubNames names = NamesOf(spec.family);
  Json json = {{"architectures", Json::array({names.architecture})},
               {"model_type", names.model_type},
               {"hidden_size", spec.hidden},
               {"intermediate_size", spec.intermediate},
               {"num_hidden_layers", spec.layers},
               {"num_attention_heads", spec.q_heads},
               {"num_key_value_heads", spec.kv_heads},
               {"vocab_size", spec.vocab_size},
               {"max_position_embeddings", spec.context},
               {"hidden_act", "silu"},
               {"rms_norm_eps", spec.eps},
               {"rope_theta", spec.theta},
               {"rope_scaling", RopeScalingOf(spec)},
               {"tie_word_embeddings", spec.tied},
               {"attention_bias", false},
               {"use_cache", true}};
  if (spec.head_dim > 0) json["head_dim"] = spec.head_dim;
  if (spec.family == DummyFamily::kMistral || spec.family == DummyFamily::kMixtral) {
    json["sliding_window"] = spec.window > 0 ? Json(spec.window) : Json(nullptr);
  }
  if (spec.family == DummyFamily::kQwen2) json["use_sliding_window"] = false;
  if (spec.experts > 0) AddExperts(spec, &json);
  if (spec.mla()) AddMla(spec, &json);
  if (spec.mtp_layers > 0) json["num_nextn_predict_layers"] = spec.mtp_layers;
  if (bos_id >= 0) json["bos_token_id"] = bos_id;
  if (eos_id >= 0) json["eos_token_id"] = eos_id;
  const char* stored_as = type == DType::kF32 ? "float32" : type == DType::kF16 ? "float16" : "bfloat16";
  json["torch_dtype"] = stored_as;
  if (type == DType::kFP8E4M3) {
    json["quantization_config"] = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"activation_scheme", "dynamic"},
                                   {"weight_block_size", {128, 128}}};
  }
  return json.dump(2) + "\n";
}

}  // namespace cachalot
