#include "weights/dummy/dummy_spec.h"

namespace cachalot {
namespace {

using enum DummyFamily;

// One model, one paragraph.
// clang-format off
constexpr DummySpec kSpecs[] = {
    // Small enough for tests: every code path of the family, no meaning.
    {.name = "tiny-llama", .family = kLlama, .vocab = VocabFamily::kSmolLm, .layers = 2, .hidden = 64,
     .intermediate = 160, .q_heads = 4, .kv_heads = 2, .head_dim = 16, .vocab_size = 640, .context = 512, .eps = 1e-5,
     .theta = 10000, .tied = true},
    {.name = "tiny-mistral", .family = kMistral, .vocab = VocabFamily::kMistral, .layers = 2, .hidden = 64,
     .intermediate = 160, .q_heads = 4, .kv_heads = 2, .head_dim = 16, .vocab_size = 640, .context = 512, .eps = 1e-5,
     .theta = 10000, .window = 48},
    {.name = "tiny-qwen2", .family = kQwen2, .vocab = VocabFamily::kQwen2, .layers = 2, .hidden = 64,
     .intermediate = 160, .q_heads = 4, .kv_heads = 2, .head_dim = 16, .vocab_size = 640, .context = 512, .eps = 1e-6,
     .theta = 1000000},
    {.name = "tiny-qwen3-moe", .family = kQwen3Moe, .vocab = VocabFamily::kQwen3, .layers = 2, .hidden = 64,
     .intermediate = 160, .q_heads = 4, .kv_heads = 2, .head_dim = 32, .vocab_size = 640, .context = 512, .eps = 1e-6,
     .theta = 1000000, .experts = 8, .top_k = 2, .moe_intermediate = 32, .normalize = true},
    {.name = "tiny-deepseek-moe", .family = kDeepSeekMoe, .vocab = VocabFamily::kDeepSeekLlm, .layers = 3, .hidden = 64,
     .intermediate = 160, .q_heads = 4, .kv_heads = 4, .head_dim = 16, .vocab_size = 640, .context = 512, .eps = 1e-6,
     .theta = 10000, .experts = 8, .top_k = 3, .moe_intermediate = 32, .shared_experts = 2, .first_dense = 1},
    {.name = "tiny-deepseek-v2", .family = kDeepSeekV2, .vocab = VocabFamily::kDeepSeekLlm, .layers = 2, .hidden = 64,
     .intermediate = 160, .q_heads = 4, .kv_heads = 4, .head_dim = 0, .vocab_size = 640, .context = 2560, .eps = 1e-6,
     .theta = 10000, .experts = 8, .top_k = 3, .moe_intermediate = 32, .shared_experts = 2, .first_dense = 1,
     .kv_lora = 32, .nope_dim = 32, .rope_dim = 16, .v_dim = 32, .yarn_factor = 40, .yarn_original_context = 64,
     .yarn_mscale = 0.707},
    {.name = "tiny-deepseek-v3", .family = kDeepSeekV3, .vocab = VocabFamily::kDeepSeekV3, .layers = 3, .hidden = 64,
     .intermediate = 160, .q_heads = 4, .kv_heads = 4, .head_dim = 0, .vocab_size = 2048, .context = 2560, .eps = 1e-6,
     .theta = 10000, .experts = 16, .top_k = 4, .moe_intermediate = 32, .shared_experts = 1, .first_dense = 1,
     .groups = 4, .top_k_groups = 2, .normalize = true, .scaling = 2.5, .q_lora = 32, .kv_lora = 32, .nope_dim = 32,
     .rope_dim = 16, .v_dim = 32, .yarn_factor = 40, .yarn_original_context = 64, .yarn_mscale = 1.0,
     .mtp_layers = 1},

    {.name = "smollm2-135m", .family = kLlama, .vocab = VocabFamily::kSmolLm, .layers = 30, .hidden = 576,
     .intermediate = 1536, .q_heads = 9, .kv_heads = 3, .head_dim = 64, .vocab_size = 49152, .context = 8192,
     .eps = 1e-5, .theta = 100000, .tied = true},
    {.name = "smollm2-360m", .family = kLlama, .vocab = VocabFamily::kSmolLm, .layers = 32, .hidden = 960,
     .intermediate = 2560, .q_heads = 15, .kv_heads = 5, .head_dim = 64, .vocab_size = 49152, .context = 8192,
     .eps = 1e-5, .theta = 100000, .tied = true},
    {.name = "smollm2-1.7b", .family = kLlama, .vocab = VocabFamily::kSmolLm, .layers = 24, .hidden = 2048,
     .intermediate = 8192, .q_heads = 32, .kv_heads = 32, .head_dim = 64, .vocab_size = 49152, .context = 8192,
     .eps = 1e-5, .theta = 130000, .tied = true},
    {.name = "llama-1b", .family = kLlama, .vocab = VocabFamily::kLlama3, .layers = 16, .hidden = 2048,
     .intermediate = 8192, .q_heads = 32, .kv_heads = 8, .head_dim = 64, .vocab_size = 128256, .context = 131072,
     .eps = 1e-5, .theta = 500000, .tied = true, .llama3_factor = 32},
    {.name = "llama-3b", .family = kLlama, .vocab = VocabFamily::kLlama3, .layers = 28, .hidden = 3072,
     .intermediate = 8192, .q_heads = 24, .kv_heads = 8, .head_dim = 128, .vocab_size = 128256, .context = 131072,
     .eps = 1e-5, .theta = 500000, .tied = true, .llama3_factor = 32},
    {.name = "llama-8b", .family = kLlama, .vocab = VocabFamily::kLlama3, .layers = 32, .hidden = 4096,
     .intermediate = 14336, .q_heads = 32, .kv_heads = 8, .head_dim = 128, .vocab_size = 128256, .context = 131072,
     .eps = 1e-5, .theta = 500000, .llama3_factor = 8},
    {.name = "llama-70b", .family = kLlama, .vocab = VocabFamily::kLlama3, .layers = 80, .hidden = 8192,
     .intermediate = 28672, .q_heads = 64, .kv_heads = 8, .head_dim = 128, .vocab_size = 128256, .context = 131072,
     .eps = 1e-5, .theta = 500000, .llama3_factor = 8},
    {.name = "r1-distill-llama-8b", .family = kLlama, .vocab = VocabFamily::kR1Llama, .layers = 32, .hidden = 4096,
     .intermediate = 14336, .q_heads = 32, .kv_heads = 8, .head_dim = 128, .vocab_size = 128256, .context = 131072,
     .eps = 1e-5, .theta = 500000, .llama3_factor = 8},
    {.name = "r1-distill-llama-70b", .family = kLlama, .vocab = VocabFamily::kR1Llama, .layers = 80, .hidden = 8192,
     .intermediate = 28672, .q_heads = 64, .kv_heads = 8, .head_dim = 128, .vocab_size = 128256, .context = 131072,
     .eps = 1e-5, .theta = 500000, .llama3_factor = 8},
    {.name = "r1-distill-qwen-1.5b", .family = kQwen2, .vocab = VocabFamily::kR1Qwen, .layers = 28, .hidden = 1536,
     .intermediate = 8960, .q_heads = 12, .kv_heads = 2, .head_dim = 128, .vocab_size = 151936, .context = 131072,
     .eps = 1e-6, .theta = 10000},
    {.name = "r1-distill-qwen-7b", .family = kQwen2, .vocab = VocabFamily::kR1Qwen, .layers = 28, .hidden = 3584,
     .intermediate = 18944, .q_heads = 28, .kv_heads = 4, .head_dim = 128, .vocab_size = 152064, .context = 131072,
     .eps = 1e-6, .theta = 10000},
    {.name = "r1-distill-qwen-14b", .family = kQwen2, .vocab = VocabFamily::kR1Qwen, .layers = 48, .hidden = 5120,
     .intermediate = 13824, .q_heads = 40, .kv_heads = 8, .head_dim = 128, .vocab_size = 152064, .context = 131072,
     .eps = 1e-5, .theta = 1000000},
    {.name = "r1-distill-qwen-32b", .family = kQwen2, .vocab = VocabFamily::kR1Qwen, .layers = 64, .hidden = 5120,
     .intermediate = 27648, .q_heads = 40, .kv_heads = 8, .head_dim = 128, .vocab_size = 152064, .context = 131072,
     .eps = 1e-5, .theta = 1000000},
    {.name = "qwen2.5-0.5b", .family = kQwen2, .vocab = VocabFamily::kQwen2, .layers = 24, .hidden = 896,
     .intermediate = 4864, .q_heads = 14, .kv_heads = 2, .head_dim = 64, .vocab_size = 151936, .context = 32768,
     .eps = 1e-6, .theta = 1000000, .tied = true},
    {.name = "qwen2.5-7b", .family = kQwen2, .vocab = VocabFamily::kQwen2, .layers = 28, .hidden = 3584,
     .intermediate = 18944, .q_heads = 28, .kv_heads = 4, .head_dim = 128, .vocab_size = 152064, .context = 32768,
     .eps = 1e-6, .theta = 1000000},
    {.name = "qwen3-0.6b", .family = kQwen3, .vocab = VocabFamily::kQwen3, .layers = 28, .hidden = 1024,
     .intermediate = 3072, .q_heads = 16, .kv_heads = 8, .head_dim = 128, .vocab_size = 151936, .context = 40960,
     .eps = 1e-6, .theta = 1000000, .tied = true},
    {.name = "qwen3-4b", .family = kQwen3, .vocab = VocabFamily::kQwen3, .layers = 36, .hidden = 2560,
     .intermediate = 9728, .q_heads = 32, .kv_heads = 8, .head_dim = 128, .vocab_size = 151936, .context = 40960,
     .eps = 1e-6, .theta = 1000000, .tied = true},
    {.name = "qwen3-8b", .family = kQwen3, .vocab = VocabFamily::kQwen3, .layers = 36, .hidden = 4096,
     .intermediate = 12288, .q_heads = 32, .kv_heads = 8, .head_dim = 128, .vocab_size = 151936, .context = 40960,
     .eps = 1e-6, .theta = 1000000},
    {.name = "mistral-7b", .family = kMistral, .vocab = VocabFamily::kMistral, .layers = 32, .hidden = 4096,
     .intermediate = 14336, .q_heads = 32, .kv_heads = 8, .head_dim = 128, .vocab_size = 32000, .context = 32768,
     .eps = 1e-5, .theta = 10000, .window = 4096},
    {.name = "mixtral-8x7b", .family = kMixtral, .vocab = VocabFamily::kMistral, .layers = 32, .hidden = 4096,
     .intermediate = 14336, .q_heads = 32, .kv_heads = 8, .head_dim = 128, .vocab_size = 32000, .context = 32768,
     .eps = 1e-5, .theta = 1000000, .experts = 8, .top_k = 2, .moe_intermediate = 14336, .normalize = true},
    {.name = "qwen3-30b-a3b", .family = kQwen3Moe, .vocab = VocabFamily::kQwen3, .layers = 48, .hidden = 2048,
     .intermediate = 6144, .q_heads = 32, .kv_heads = 4, .head_dim = 128, .vocab_size = 151936, .context = 40960,
     .eps = 1e-6, .theta = 1000000, .experts = 128, .top_k = 8, .moe_intermediate = 768, .normalize = true},
    {.name = "deepseek-moe-16b", .family = kDeepSeekMoe, .vocab = VocabFamily::kDeepSeekLlm, .layers = 28,
     .hidden = 2048, .intermediate = 10944, .q_heads = 16, .kv_heads = 16, .head_dim = 128, .vocab_size = 102400,
     .context = 4096, .eps = 1e-6, .theta = 10000, .experts = 64, .top_k = 6, .moe_intermediate = 1408,
     .shared_experts = 2, .first_dense = 1},
    {.name = "deepseek-v2-lite", .family = kDeepSeekV2, .vocab = VocabFamily::kDeepSeekLlm, .layers = 27,
     .hidden = 2048, .intermediate = 10944, .q_heads = 16, .kv_heads = 16, .head_dim = 0, .vocab_size = 102400,
     .context = 163840, .eps = 1e-6, .theta = 10000, .experts = 64, .top_k = 6, .moe_intermediate = 1408,
     .shared_experts = 2, .first_dense = 1, .kv_lora = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128,
     .yarn_factor = 40, .yarn_mscale = 0.707},
    {.name = "deepseek-v2", .family = kDeepSeekV2, .vocab = VocabFamily::kDeepSeekLlm, .layers = 60, .hidden = 5120,
     .intermediate = 12288, .q_heads = 128, .kv_heads = 128, .head_dim = 0, .vocab_size = 102400, .context = 163840,
     .eps = 1e-6, .theta = 10000, .experts = 160, .top_k = 6, .moe_intermediate = 1536, .shared_experts = 2,
     .first_dense = 1, .groups = 8, .top_k_groups = 3, .scaling = 16, .q_lora = 1536, .kv_lora = 512,
     .nope_dim = 128, .rope_dim = 64, .v_dim = 128, .yarn_factor = 40, .yarn_mscale = 1.0},
    {.name = "deepseek-v3", .family = kDeepSeekV3, .vocab = VocabFamily::kDeepSeekV3, .layers = 61, .hidden = 7168,
     .intermediate = 18432, .q_heads = 128, .kv_heads = 128, .head_dim = 0, .vocab_size = 129280, .context = 163840,
     .eps = 1e-6, .theta = 10000, .experts = 256, .top_k = 8, .moe_intermediate = 2048, .shared_experts = 1,
     .first_dense = 3, .groups = 8, .top_k_groups = 4, .normalize = true, .scaling = 2.5, .q_lora = 1536,
     .kv_lora = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128, .yarn_factor = 40, .yarn_mscale = 1.0,
     .mtp_layers = 1, .type = DType::kFP8E4M3},
};
// clang-format on

}  // namespace

std::span<const DummySpec> AllDummySpecs() {
  return kSpecs;
}

Result<DummySpec> FindDummySpec(std::string_view name) {
  std::string names;
  for (const auto& spec : kSpecs) {
    if (name == spec.name) return spec;
    names += names.empty() ? "" : ", ";
    names += spec.name;
  }
  return NotFound("dummy spec '{}' is none of {}", name, names);
}

}  // namespace cachalot
