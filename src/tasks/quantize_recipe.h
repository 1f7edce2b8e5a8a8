// What each tensor of a quantised file becomes: the mixtures that people know by name (Q4_K_M: mostly Q4_K,
// the tensors that suffer most in Q6_K), as GGUF files made by llama.cpp have them, and the types that step
// in where a row is no multiple of 256.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/gguf.h"
#include "tensor/dtype.h"

namespace cachalot {

struct QuantizeRecipe {
  const char* name;     // "Q4_K_M"
  DType base;           // of most tensors
  uint32_t file_type;   // general.file_type
  const char* summary;  // bits per weight, for the help text
};
std::span<const QuantizeRecipe> AllQuantizeRecipes();
// In any case; kInvalidArgument names the choices.
Result<const QuantizeRecipe*> FindQuantizeRecipe(std::string_view name);

// What the mixtures look at.
struct QuantizeFacts {
  int64_t num_layers = 0;
  int64_t num_experts = 0;
  int64_t heads_per_kv = 1;
  bool tied_embeddings = false;
  bool has_importance = false;
};
Result<QuantizeFacts> ReadQuantizeFacts(const GgufFile& file);

// A type for the tensors whose name a regular expression finds.
struct TensorTypeRule {
  std::string pattern;
  DType type = DType::kF32;
};
// A type that can be written to a GGUF file; kInvalidArgument names all of them.
Result<DType> ParseWritableType(std::string_view name);
// "REGEX=TYPE"; kInvalidArgument for a bad expression or a type that cannot be written.
Result<TensorTypeRule> ParseTensorTypeRule(std::string_view text);

struct QuantizeChoices {
  const QuantizeRecipe* recipe = nullptr;
  bool pure = false;                  // the recipe's base for all
  bool leave_output = false;          // output.weight stays as it is
  std::vector<TensorTypeRule> rules;  // the first that fits
  int32_t output_type = -1;           // a DType, or -1: the recipe's
  int32_t embedding_type = -1;
};

// Of choices.rules those that find no tensor: mistyped, most likely.
std::vector<std::string> RulesWithoutTensors(std::span<const GgufTensor> tensors, const QuantizeChoices& choices);

// One type for each tensor of the model at `place`, in their order; tensors that stay (vectors, routers) keep theirs.
// kUnsupported when a rule asks for a type whose blocks do not fit the rows.
Result<std::vector<DType>> ChooseTypes(const std::string& place, std::span<const GgufTensor> tensors,
                                       const QuantizeFacts& facts, const QuantizeChoices& choices);

}  // namespace cachalot
