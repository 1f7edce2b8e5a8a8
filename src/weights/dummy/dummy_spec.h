// The shapes of well-known models, as numbers: what `dummy SPEC` and `--dummy SPEC` make a model of.
// Sources: the published config.json of each model; see docs of the families for the meaning of the fields.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "tensor/dtype.h"

namespace cachalot {

enum class DummyFamily {
  kLlama,
  kMistral,
  kQwen2,
  kQwen3,
  kMixtral,
  kQwen3Moe,
  kDeepSeekMoe,
  kDeepSeekV2,
  kDeepSeekV3
};

// Whose special tokens, pre-tokenizer and template a generated vocabulary imitates.
enum class VocabFamily {
  kSmolLm,
  kLlama3,
  kMistral,
  kQwen2,
  kQwen3,
  kR1Qwen,
  kR1Llama,
  kDeepSeekLlm,
  kDeepSeekV3
};

struct DummySpec {
  const char* name;
  DummyFamily family;
  VocabFamily vocab;
  int32_t layers;
  int32_t hidden;
  int32_t intermediate;
  int32_t q_heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t vocab_size;
  int32_t context;
  double eps;
  double theta;
  bool tied = false;
  int32_t window = 0;
  double llama3_factor = 0.0;  // 0: no RoPE scaling of Llama 3.1
  // Mixture of experts; 0 experts: dense.
  int32_t experts = 0;
  int32_t top_k = 0;
  int32_t moe_intermediate = 0;
  int32_t shared_experts = 0;
  int32_t first_dense = 0;
  int32_t groups = 1;
  int32_t top_k_groups = 1;
  bool normalize = false;
  double scaling = 1.0;
  // MLA; 0 kv_lora: grouped queries.
  int32_t q_lora = 0;
  int32_t kv_lora = 0;
  int32_t nope_dim = 0;
  int32_t rope_dim = 0;
  int32_t v_dim = 0;
  double yarn_factor = 0.0;
  int32_t yarn_original_context = 4096;
  double yarn_mscale = 0.0;
  int32_t mtp_layers = 0;
  DType type = DType::kBF16;

  bool mla() const { return kv_lora > 0; }
  bool qkv_bias() const { return family == DummyFamily::kQwen2; }
  bool qk_norm() const { return family == DummyFamily::kQwen3 || family == DummyFamily::kQwen3Moe; }
  bool moe_layer(int32_t layer) const { return experts > 0 && layer >= first_dense; }
};

std::span<const DummySpec> AllDummySpecs();
// kNotFound names the specs there are.
Result<DummySpec> FindDummySpec(std::string_view name);

// The config.json that such a model has on the hub, in the classic spelling. `type` is what torch_dtype and
// the quantization_config (FP8) say; ids of -1 are left out.
std::string DummyConfigJson(const DummySpec& spec, DType type, int32_t bos_id = -1, int32_t eos_id = -1);

}  // namespace cachalot
