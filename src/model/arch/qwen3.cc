// Qwen3 (dense): Llama with an RMSNorm on every q and k head before RoPE, and no biases.
#include "model/arch/architecture.h"
#include "model/arch/gguf_common.h"
#include "model/arch/hf_common.h"
#include "model/arch/qwen_window.h"

namespace cachalot {
namespace {

Result<ModelSpec> FromHf(const HfConfig& config) {
  ASSIGN_OR_RETURN(ModelSpec spec, HfDenseSpec(config));
  RETURN_IF_ERROR(HfGqa(config, &spec));
  RETURN_IF_ERROR(HfQwenWindow(config, &spec));
  ASSIGN_OR_RETURN(spec.attention.qkv_bias, config.BoolOr("attention_bias", false));
  spec.attention.qk_norm = true;
  return spec;
}

Result<ModelSpec> FromGguf(const GgufFile& file) {
  ASSIGN_OR_RETURN(ModelSpec spec, GgufDenseSpec(file));
  RETURN_IF_ERROR(GgufGqa(file, RopeStyle::kHalf, &spec));
  spec.attention.qk_norm = true;
  return spec;
}

constexpr const char* kHfClasses[] = {"Qwen3ForCausalLM"};
constexpr const char* kGgufNames[] = {"qwen3"};

}  // namespace

const Architecture kQwen3Architecture = {"qwen3", kHfClasses, kGgufNames, FromHf, FromGguf, "qwen3", false};

}  // namespace cachalot
