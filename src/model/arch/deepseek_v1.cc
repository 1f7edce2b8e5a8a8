// DeepSeek-MoE 16B: Llama attention; softmax top-k over fine-grained experts, shared experts, a dense first layer.
#include "model/arch/architecture.h"
#include "model/arch/deepseek_common.h"
#include "model/arch/gguf_common.h"
#include "model/arch/hf_common.h"

namespace cachalot {
namespace {

Result<ModelSpec> FromHf(const HfConfig& config) {
  ASSIGN_OR_RETURN(ModelSpec spec, HfDenseSpec(config));
  RETURN_IF_ERROR(HfGqa(config, &spec));
  RETURN_IF_ERROR(HfDeepseekMoe(config, &spec));
  return spec;
}

Result<ModelSpec> FromGguf(const GgufFile& file) {
  ASSIGN_OR_RETURN(ModelSpec spec, GgufDenseSpec(file));
  RETURN_IF_ERROR(GgufGqa(file, RopeStyle::kInterleaved, &spec));
  RETURN_IF_ERROR(GgufDeepseekMoe(file, &spec));
  return spec;
}

constexpr const char* kHfClasses[] = {"DeepseekForCausalLM"};
constexpr const char* kGgufNames[] = {"deepseek"};

}  // namespace

const Architecture kDeepseekV1Architecture = {"deepseek-moe", kHfClasses, kGgufNames, FromHf, FromGguf, "deepseek", true};

}  // namespace cachalot
