// What the GGUF metadata of our architectures have in common.
#pragma once

#include <string>

#include "formats/gguf.h"
#include "model/model_spec.h"
#include "model/rope_scaling.h"

namespace cachalot {

// "llama" → "llama.block_count": the keys of a file carry its architecture in front.
class GgufKeys {
 public:
  static Result<GgufKeys> Of(const GgufFile& file);
  std::string operator()(const char* suffix) const { return prefix_ + suffix; }

 private:
  std::string prefix_;
};

Result<int32_t> GgufInt(const GgufFile& file, const std::string& key, int64_t min, int64_t max);
Result<int32_t> GgufIntOr(const GgufFile& file, const std::string& key, int64_t default_value, int64_t min, int64_t max);

// Vocabulary (the embedding's rows), width, layers, intermediate, norm, context, tying (no output.weight).
Result<ModelSpec> GgufDenseSpec(const GgufFile& file);
Result<RopeScaling> GgufRopeScaling(const GgufFile& file);
// Heads and RoPE of grouped-query attention; a rope_freqs.weight tensor (Llama-3 scaling) is applied.
Status GgufGqa(const GgufFile& file, RopeStyle style, ModelSpec* spec);

}  // namespace cachalot
