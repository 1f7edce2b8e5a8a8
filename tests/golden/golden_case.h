// Reference results of tiny random models (tests/data/golden/README.md): the model, the tokens, and the logits that
// transformers computes for them in F32.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace cachalot {

struct GoldenCase {
  std::string folder;
  std::vector<int32_t> tokens;
  std::vector<float> logits;    // [tokens, vocab]
  std::vector<int32_t> greedy;  // continues the first prompt_tokens tokens
  int32_t prompt_tokens = 0;
  int32_t vocab = 0;
};

// From the tests' own data (unpacked by the build) or, for the larger cases, from ../shared/golden beside the checkout.
// kNotFound when it is in neither.
Result<GoldenCase> LoadGoldenCase(const std::string& name);

// A tensor of a safetensors file, converted to the type asked for.
Result<std::vector<float>> ReadFloats(const std::string& path, const std::string& tensor);
Result<std::vector<int32_t>> ReadInts(const std::string& path, const std::string& tensor);

}  // namespace cachalot
