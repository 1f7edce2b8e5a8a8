// DeepSeek-V3, R1 and V3.1: MLA; sigmoid scores with a choice bias, groups by the sum of their two best experts
// (arXiv 2412.19437); MTP layers after the last. Their GGUF files say "deepseek2" (deepseek_v2.cc).
#include "formats/text.h"
#include "model/arch/architecture.h"
#include "model/arch/deepseek_common.h"
#include "model/arch/hf_common.h"

namespace cachalot {
namespace {

Result<ModelSpec> FromHf(const HfConfig& config) {
  ASSIGN_OR_RETURN(ModelSpec spec, HfDenseSpec(config));
  RETURN_IF_ERROR(HfMla(config, &spec));
  RETURN_IF_ERROR(HfDeepseekMoe(config, &spec));
  ASSIGN_OR_RETURN(const std::string scoring, config.StringOr("scoring_func", "sigmoid"));
  ASSIGN_OR_RETURN(const std::string method, config.StringOr("topk_method", "noaux_tc"));
  if (scoring != "sigmoid") return Unsupported("{}: scoring_func '{}': only sigmoid is known", config.place(), Printable(scoring));
  if (method != "noaux_tc") return Unsupported("{}: topk_method '{}': only noaux_tc is known", config.place(), Printable(method));
  ASSIGN_OR_RETURN(const bool interleave, config.BoolOr("rope_interleave", true));
  if (!interleave) spec.attention.rope.style = RopeStyle::kHalf;
  ASSIGN_OR_RETURN(spec.moe.normalize, config.BoolOr("norm_topk_prob", true));
  ASSIGN_OR_RETURN(const double scaling, config.FloatOr("routed_scaling_factor", 2.5, 0.0, 1e6));
  spec.moe.scaling = static_cast<float>(scaling);
  spec.moe.score = MoeScore::kSigmoid;
  spec.moe.choice_bias = true;
  spec.moe.group_score = spec.moe.num_groups > 1 ? MoeGroupScore::kTop2Sum : MoeGroupScore::kNone;
  ASSIGN_OR_RETURN(spec.num_mtp_layers, HfIntOr(config, "num_nextn_predict_layers", 0, 0, 16));
  for (int32_t i = 0; i < spec.num_mtp_layers; ++i) spec.layers.push_back({.moe = spec.moe.num_experts > 0});
  return spec;
}

constexpr const char* kHfClasses[] = {"DeepseekV3ForCausalLM"};

}  // namespace

const Architecture kDeepseekV3Architecture = {"deepseek-v3", kHfClasses, {}, FromHf, nullptr, "deepseek2", false};

}  // namespace cachalot
