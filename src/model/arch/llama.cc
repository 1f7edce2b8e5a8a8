// Llama (1 to 3.x) and everything of its shape: DeepSeek-LLM, R1-Distill-Llama, SmolLM2. GGUF files of Mistral and
// Mixtral say "llama" too: a file with experts is a Mixtral.
#include "model/arch/architecture.h"
#include "model/arch/gguf_common.h"
#include "model/arch/hf_common.h"

namespace cachalot {
namespace {

Result<ModelSpec> FromHf(const HfConfig& config) {
  ASSIGN_OR_RETURN(ModelSpec spec, HfDenseSpec(config));
  RETURN_IF_ERROR(HfGqa(config, &spec));
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    ASSIGN_OR_RETURN(const bool bias, config.BoolOr(key, false));
    if (bias) return Unsupported("{}: {} true: no Llama that we know has one", config.place(), key);
  }
  return spec;
}

Result<ModelSpec> FromGguf(const GgufFile& file) {
  ASSIGN_OR_RETURN(const GgufKeys key, GgufKeys::Of(file));
  ASSIGN_OR_RETURN(const int32_t num_experts, GgufIntOr(file, key("expert_count"), 0, 0, kMaxExperts));
  if (num_experts > 0) return kMixtralArchitecture.from_gguf(file);
  ASSIGN_OR_RETURN(ModelSpec spec, GgufDenseSpec(file));
  // llama.cpp's converter permutes q and k of this architecture into interleaved pairs.
  RETURN_IF_ERROR(GgufGqa(file, RopeStyle::kInterleaved, &spec));
  return spec;
}

constexpr const char* kHfClasses[] = {"LlamaForCausalLM"};
constexpr const char* kGgufNames[] = {"llama"};

}  // namespace

const Architecture kLlamaArchitecture = {"llama", kHfClasses, kGgufNames, FromHf, FromGguf, "llama", true};

}  // namespace cachalot
