// DeepSeek-V2, V2.5 and V2-Lite: MLA; softmax scores; V2 chooses groups by their best expert. GGUF calls V2 and V3 both
// "deepseek2": a file with sigmoid gating, or with choice biases, is a V3.
#include "formats/text.h"
#include "model/arch/architecture.h"
#include "model/arch/deepseek_common.h"
#include "model/arch/gguf_common.h"
#include "model/arch/hf_common.h"

namespace cachalot {
namespace {

Result<ModelSpec> FromHf(const HfConfig& config) {
  ASSIGN_OR_RETURN(ModelSpec spec, HfDenseSpec(config));
  RETURN_IF_ERROR(HfMla(config, &spec));
  RETURN_IF_ERROR(HfDeepseekMoe(config, &spec));
  ASSIGN_OR_RETURN(const std::string method, config.StringOr("topk_method", "greedy"));
  if (method == "group_limited_greedy") {
    spec.moe.group_score = MoeGroupScore::kMax;
  } else if (method == "greedy") {
    spec.moe.num_groups = spec.moe.top_k_groups = 1;
  } else {
    return Unsupported("{}: topk_method '{}' is none of greedy, group_limited_greedy", config.place(), Printable(method));
  }
  // transformers' native class never normalises; DeepSeek's own code does when asked, and no released V2 asks.
  return spec;
}

Result<ModelSpec> FromGguf(const GgufFile& file) {
  ASSIGN_OR_RETURN(const GgufKeys key, GgufKeys::Of(file));
  ASSIGN_OR_RETURN(ModelSpec spec, GgufDenseSpec(file));
  ASSIGN_OR_RETURN(const int32_t num_mtp, GgufIntOr(file, key("nextn_predict_layers"), 0, 0, 16));
  if (num_mtp >= spec.num_layers) {
    return InvalidArgument("{}: {} {} must be below {} {}", file.path(), key("nextn_predict_layers"), num_mtp,
                           key("block_count"), spec.num_layers);
  }
  RETURN_IF_ERROR(GgufMla(file, &spec));
  RETURN_IF_ERROR(GgufDeepseekMoe(file, &spec));
  spec.num_layers -= num_mtp;  // block_count counts the MTP layers, which come last
  spec.num_mtp_layers = num_mtp;

  bool has_bias = false;
  for (const auto& tensor : file.tensors()) has_bias |= tensor.name.find("exp_probs_b") != std::string::npos;
  // expert_gating_func: 1 softmax, 2 sigmoid. Files from before the key: V3's have the choice bias.
  ASSIGN_OR_RETURN(const int64_t gating, file.IntOr(key("expert_gating_func"), has_bias ? 2 : 1, 1, 2));
  spec.moe.choice_bias = has_bias;
  if (gating == 2) {
    spec.moe.score = MoeScore::kSigmoid;
    spec.architecture = "deepseek-v3";
    // V3-class files without group keys come from models with one group (Kimi-K2, Moonlight).
    if (spec.moe.num_groups > 1) spec.moe.group_score = MoeGroupScore::kTop2Sum;
  } else if (spec.moe.num_groups > 1) {
    spec.moe.group_score = MoeGroupScore::kMax;
  }
  return spec;
}

constexpr const char* kHfClasses[] = {"DeepseekV2ForCausalLM"};
constexpr const char* kGgufNames[] = {"deepseek2"};

}  // namespace

const Architecture kDeepseekV2Architecture = {"deepseek-v2", kHfClasses, kGgufNames, FromHf, FromGguf, "deepseek2", false};

}  // namespace cachalot
