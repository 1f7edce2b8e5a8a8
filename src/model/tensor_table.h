// The tensor table: what each weight is called in Hugging Face folders and in GGUF files.
// Sources of the names: transformers' modelling files; gguf-py/gguf/constants.py (llama.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cachalot {

enum class TensorRole : uint8_t {
  kEmbedding, kFinalNorm, kHead,
  kAttentionNorm, kFfnNorm,
  kQ, kK, kV, kO, kQBias, kKBias, kVBias, kQNorm, kKNorm,
  kQA, kQANorm, kQB, kKvA, kKvANorm, kKvB, kKB, kVB,
  kGate, kUp, kDown,
  kRouter, kRouterBias, kExpertGate, kExpertUp, kExpertDown, kSharedGate, kSharedUp, kSharedDown,
  kMtpEmbeddingNorm, kMtpHiddenNorm, kMtpProjection, kMtpNorm, kMtpEmbedding, kMtpHead,
};
inline constexpr int kNumTensorRoles = static_cast<int>(TensorRole::kMtpHead) + 1;

enum class SourceNaming : uint8_t { kHuggingFace, kGguf };

// All names under which the role may be found, the usual one first. `layer` and `expert` are ignored where the name has
// none. In GGUF the experts of a layer are one stacked tensor [experts, rows, cols]: `expert` is ignored.
std::vector<std::string> TensorNames(TensorRole role, SourceNaming naming, int32_t layer, int32_t expert);

}  // namespace cachalot
