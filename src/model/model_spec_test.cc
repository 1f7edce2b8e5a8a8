// Configurations: what they become, and the one-line errors of those that do not hold together.
#include "model/model_spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/arch/architecture.h"
#include "model/rope_scaling.h"

namespace cachalot {
namespace {

using nlohmann::json;

json DeepseekV3() {
  return json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 129280, "hidden_size": 7168, "num_hidden_layers": 61,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_attention_heads": 128, "num_key_value_heads": 128,
    "n_shared_experts": 1, "n_routed_experts": 256, "routed_scaling_factor": 2.5, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "n_group": 8,
    "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "norm_topk_prob": true,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "hidden_act": "silu", "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-6, "rope_theta": 10000, "num_nextn_predict_layers": 1,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
                     "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}})");
}

json Llama() {
  return json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 32,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192}})");
}

Result<ModelSpec> Spec(const json& config) {
  ASSIGN_OR_RETURN(const HfConfig parsed, HfConfig::Parse(config.dump(), "config.json"));
  return SpecFromHf(parsed);
}

TEST(ModelSpec, DeepseekV3) {
  const auto spec = Spec(DeepseekV3());
  ASSERT_TRUE(spec.ok()) << spec.status().ToString();
  EXPECT_EQ(spec->architecture, "deepseek-v3");
  EXPECT_EQ(spec->num_moe_layers(), 58);
  EXPECT_EQ(spec->num_all_layers(), 62);
  EXPECT_TRUE(spec->layers[61].moe);
  EXPECT_EQ(spec->moe.group_score, MoeGroupScore::kTop2Sum);
  // 192^-0.5 times the square of 0.1 ln 40 + 1, for a head of 192 values: never from the latent's 576.
  EXPECT_NEAR(spec->attention.scale, 0.1352338, 1e-6);
  EXPECT_EQ(spec->attention.rope.mscale, 1.0f);
  EXPECT_EQ(spec->attention.rope.style, RopeStyle::kInterleaved);
}

TEST(ModelSpec, LlamaHasLlama3Scaling) {
  const auto spec = Spec(Llama());
  ASSERT_TRUE(spec.ok()) << spec.status().ToString();
  const auto& inv_freq = spec->attention.rope.inv_freq;
  ASSERT_EQ(inv_freq.size(), 64u);
  EXPECT_FLOAT_EQ(inv_freq[0], 1.0f);                                                         // short waves stay
  EXPECT_FLOAT_EQ(inv_freq[63], static_cast<float>(std::pow(500000.0, -126.0 / 128) / 8.0));  // long ones by 8
  EXPECT_FLOAT_EQ(spec->attention.scale, static_cast<float>(1 / std::sqrt(128.0)));
}

TEST(RopeScaling, YarnRampAndScales) {
  const RopeScaling yarn = {.kind = RopeScalingKind::kYarn, .factor = 40, .original_context = 4096, .mscale = 0.707,
                            .mscale_all_dim = 0.707};
  const auto inv_freq = RopeInvFreq(64, 1e4, yarn);
  const auto plain = [](int i) { return std::pow(1e4, -2.0 * i / 64); };
  // The ramp runs from dimension 10 to 23: corrections of 10.47 and 22.51, rounded outwards.
  EXPECT_FLOAT_EQ(inv_freq[10], static_cast<float>(plain(10)));
  EXPECT_FLOAT_EQ(inv_freq[23], static_cast<float>(plain(23) / 40));
  EXPECT_FLOAT_EQ(inv_freq[16], static_cast<float>(plain(16) * (7.0 / 13) + plain(16) / 40 * (6.0 / 13)));
  EXPECT_EQ(RopeMscale(yarn), 1.0);
  EXPECT_NEAR(RopeSoftmaxCorrection(yarn), 1.589626, 1e-6);  // V2-Lite
  const RopeScaling qwen = {.kind = RopeScalingKind::kYarn, .factor = 4, .original_context = 32768};
  EXPECT_NEAR(RopeMscale(qwen), 0.1 * std::log(4.0) + 1, 1e-12);
  EXPECT_EQ(RopeSoftmaxCorrection(qwen), 1.0);
}

struct BadConfig {
  const char* name;
  bool deepseek;
  const char* patch;    // merged into the config
  const char* message;  // a part of the error
};

class BadConfigTest : public testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigTest, IsAOneLineErrorThatNamesTheField) {
  json config = GetParam().deepseek ? DeepseekV3() : Llama();
  config.merge_patch(json::parse(GetParam().patch));
  const auto spec = Spec(config);
  ASSERT_FALSE(spec.ok());
  EXPECT_NE(spec.status().message().find(GetParam().message), std::string::npos) << spec.status().message();
  EXPECT_NE(spec.status().message().find("config.json"), std::string::npos) << spec.status().message();
  EXPECT_EQ(spec.status().message().find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Configs, BadConfigTest,
    testing::Values(
        BadConfig{"experts_no_multiple_of_groups", true, R"({"n_routed_experts": 250})", "250 experts"},
        BadConfig{"more_experts_than_groups_hold", true, R"({"num_experts_per_tok": 130})", "top 130 experts"},
        BadConfig{"more_chosen_groups_than_groups", true, R"({"topk_group": 9})", "topk_group"},
        BadConfig{"groups_of_one", true, R"({"n_group": 256, "topk_group": 8})", "two best"},
        BadConfig{"top_k_zero", true, R"({"num_experts_per_tok": 0})", "num_experts_per_tok"},
        BadConfig{"top_k_above_experts", true, R"({"num_experts_per_tok": 257})", "num_experts_per_tok"},
        BadConfig{"no_kv_rank", true, R"({"kv_lora_rank": null})", "kv_lora_rank"},
        BadConfig{"negative_q_rank", true, R"({"q_lora_rank": -5})", "q_lora_rank"},
        BadConfig{"odd_rope", true, R"({"qk_rope_head_dim": 63})", "63 rotated"},
        BadConfig{"absurd_width", true, R"({"hidden_size": 99999999999})", "hidden_size"},
        BadConfig{"unknown_scoring", true, R"({"scoring_func": "tanh"})", "scoring_func"},
        BadConfig{"unknown_routing", true, R"({"topk_method": "greedy2"})", "topk_method"},
        BadConfig{"yarn_without_factor", true, R"({"rope_scaling": {"factor": null}})", "factor"},
        BadConfig{"yarn_factor_zero", true, R"({"rope_scaling": {"factor": 0}})", "factor"},
        BadConfig{"unknown_scaling", false, R"({"rope_scaling": {"rope_type": "longrope"}})", "longrope"},
        BadConfig{"kv_heads_do_not_divide", false, R"({"num_key_value_heads": 5})", "5 key/value heads"},
        BadConfig{"zero_layers", false, R"({"num_hidden_layers": 0})", "num_hidden_layers"},
        BadConfig{"too_many_layers", false, R"({"num_hidden_layers": 1000000})", "num_hidden_layers"},
        BadConfig{"width_no_multiple_of_heads", false, R"({"num_attention_heads": 24, "num_key_value_heads": 8})", "head_dim"},
        BadConfig{"biases", false, R"({"attention_bias": true})", "attention_bias"},
        BadConfig{"gelu", false, R"({"hidden_act": "gelu"})", "gelu"},
        BadConfig{"text_for_a_number", false, R"({"vocab_size": "many"})", "vocab_size"},
        BadConfig{"nan_theta", false, R"({"rope_theta": -1})", "rope_theta"},
        BadConfig{"unknown_class", false, R"({"architectures": ["GPT2LMHeadModel"]})", "GPT2LMHeadModel"},
        BadConfig{"no_class", false, R"({"architectures": []})", "architectures"}),
    [](const testing::TestParamInfo<BadConfig>& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace cachalot
