// Qwen2 and Qwen2.5 (and R1-Distill-Qwen): Llama with biases on q, k and v.
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
  spec.attention.qkv_bias = true;
  return spec;
}

Result<ModelSpec> FromGguf(const GgufFile& file) {
  ASSIGN_OR_RETURN(ModelSpec spec, GgufDenseSpec(file));
  RETURN_IF_ERROR(GgufGqa(file, RopeStyle::kHalf, &spec));
  spec.attention.qkv_bias = true;
  return spec;
}

constexpr const char* kHfClasses[] = {"Qwen2ForCausalLM"};
constexpr const char* kGgufNames[] = {"qwen2"};

}  // namespace

const Architecture kQwen2Architecture = {"qwen2", kHfClasses, kGgufNames, FromHf, FromGguf, "qwen2", false};

}  // namespace cachalot
