// Mixtral: Mistral with a softmax top-k mixture of experts in every layer, weights normalised (Jiang et al. 2024).
#include "model/arch/architecture.h"
#include "model/arch/gguf_common.h"
#include "model/arch/hf_common.h"

namespace cachalot {
namespace {

void SetMoe(ModelSpec* spec, int32_t num_experts, int32_t top_k, int32_t intermediate) {
  spec->moe = {.num_experts = num_experts, .top_k = top_k, .intermediate = intermediate, .normalize = true};
  for (auto& layer : spec->layers) layer.moe = true;
}

Result<ModelSpec> FromHf(const HfConfig& config) {
  ASSIGN_OR_RETURN(ModelSpec spec, HfDenseSpec(config));
  RETURN_IF_ERROR(HfGqa(config, &spec));
  ASSIGN_OR_RETURN(const int32_t window, HfIntOr(config, "sliding_window", 0, 1, kMaxPositions));
  for (auto& layer : spec.layers) layer.window = window;
  ASSIGN_OR_RETURN(const int32_t num_experts, HfInt(config, "num_local_experts", 1, kMaxExperts));
  ASSIGN_OR_RETURN(const int32_t top_k, HfInt(config, "num_experts_per_tok", 1, num_experts));
  SetMoe(&spec, num_experts, top_k, spec.intermediate);
  return spec;
}

Result<ModelSpec> FromGguf(const GgufFile& file) {
  ASSIGN_OR_RETURN(const GgufKeys key, GgufKeys::Of(file));
  ASSIGN_OR_RETURN(ModelSpec spec, GgufDenseSpec(file));
  RETURN_IF_ERROR(GgufGqa(file, RopeStyle::kInterleaved, &spec));
  ASSIGN_OR_RETURN(const int32_t num_experts, GgufInt(file, key("expert_count"), 1, kMaxExperts));
  ASSIGN_OR_RETURN(const int32_t top_k, GgufInt(file, key("expert_used_count"), 1, num_experts));
  SetMoe(&spec, num_experts, top_k, spec.intermediate);
  spec.architecture = "mixtral";
  return spec;
}

constexpr const char* kHfClasses[] = {"MixtralForCausalLM"};

}  // namespace

const Architecture kMixtralArchitecture = {"mixtral", kHfClasses, {}, FromHf, FromGguf, "llama", true};

}  // namespace cachalot
