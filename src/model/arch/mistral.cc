// Mistral: Llama with a sliding window over the keys (Jiang et al. 2023). Its GGUF files say "llama".
#include "model/arch/architecture.h"
#include "model/arch/hf_common.h"

namespace cachalot {
namespace {

Result<ModelSpec> FromHf(const HfConfig& config) {
  ASSIGN_OR_RETURN(ModelSpec spec, HfDenseSpec(config));
  RETURN_IF_ERROR(HfGqa(config, &spec));
  ASSIGN_OR_RETURN(const int32_t window, HfIntOr(config, "sliding_window", 0, 1, kMaxPositions));
  for (auto& layer : spec.layers) layer.window = window;
  return spec;
}

constexpr const char* kHfClasses[] = {"MistralForCausalLM"};

}  // namespace

const Architecture kMistralArchitecture = {"mistral", kHfClasses, {}, FromHf, nullptr, "llama", true};

}  // namespace cachalot
