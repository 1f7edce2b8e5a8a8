#include "tasks/quantize_recipe.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <regex>

#include "formats/text.h"
#include "quant/format.h"

namespace cachalot {
namespace {

constexpr QuantizeRecipe kRecipes[] = {
    {"F32", DType::kF32, 0, "32 bits a weight"},
    {"F16", DType::kF16, 1, "16"},
    {"BF16", DType::kBF16, 32, "16"},
    {"Q8_0", DType::kQ8_0, 7, "8.5, as good as 16"},
    {"Q6_K", DType::kQ6_K, 18, "6.6"},
    {"Q5_K_M", DType::kQ5_K, 17, "5.7"},
    {"Q5_K_S", DType::kQ5_K, 16, "5.5"},
    {"Q5_1", DType::kQ5_1, 9, "6.0"},
    {"Q5_0", DType::kQ5_0, 8, "5.5"},
    {"Q4_K_M", DType::kQ4_K, 15, "4.8, what most people take"},
    {"Q4_K_S", DType::kQ4_K, 14, "4.6"},
    {"Q4_1", DType::kQ4_1, 3, "5.0"},
    {"Q4_0", DType::kQ4_0, 2, "4.5"},
    {"IQ4_NL", DType::kIQ4_NL, 25, "4.5"},
    {"IQ4_XS", DType::kIQ4_XS, 30, "4.3"},
    {"Q3_K_L", DType::kQ3_K, 13, "4.3"},
    {"Q3_K_M", DType::kQ3_K, 12, "3.9"},
    {"Q3_K_S", DType::kQ3_K, 11, "3.5"},
    {"Q2_K", DType::kQ2_K, 10, "3.2, for want of memory only"},
    {"Q2_K_S", DType::kQ2_K, 21, "2.9"},
};

enum class Kind { kOther, kEmbedding, kOutput, kV, kK, kO, kDown };

Kind KindOf(std::string_view name) {
  if (name == "token_embd.weight") return Kind::kEmbedding;
  if (name == "output.weight") return Kind::kOutput;
  if (!name.starts_with("blk.")) return Kind::kOther;
  const size_t dot = name.find('.', 4);
  if (dot == std::string_view::npos) return Kind::kOther;
  const std::string_view part = name.substr(dot + 1);
  if (part == "attn_v.weight" || part == "attn_kv_b.weight") return Kind::kV;
  if (part == "attn_k.weight") return Kind::kK;
  if (part == "attn_output.weight") return Kind::kO;
  if (part.starts_with("ffn_down")) return Kind::kDown;
  return Kind::kOther;
}

int64_t LayerOf(std::string_view name) {
  int64_t layer = 0;
  if (name.starts_with("blk.")) std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  return layer;
}

// When a row of the table below applies. Layers near the ends of the model suffer most.
enum class When {
  kAlways,
  kEdges,  // the first and last eighth, and every third layer between
  kFirst2,
  kFirst4,
  kFirstEighth,
  kFirstSixteenth,
  kFirstEighthUnweighted,  // without an importance matrix
  kFirstEighthWeighted,    // with one
  kGrouped,                // four query heads or more share a V
};

struct Rule {
  std::string_view recipe;
  Kind kind;
  When when;
  DType type;
};

// The first row that fits decides; without one a tensor gets the recipe's base.
constexpr Rule kRules[] = {
    {"Q2_K", Kind::kV, When::kGrouped, DType::kQ4_K},
    {"Q2_K", Kind::kV, When::kAlways, DType::kQ3_K},
    {"Q2_K", Kind::kDown, When::kAlways, DType::kQ3_K},
    {"Q2_K", Kind::kO, When::kAlways, DType::kQ3_K},
    {"Q2_K_S", Kind::kV, When::kGrouped, DType::kQ4_K},
    {"Q2_K_S", Kind::kDown, When::kFirstEighth, DType::kQ4_K},
    {"Q3_K_M", Kind::kV, When::kFirst2, DType::kQ5_K},
    {"Q3_K_M", Kind::kV, When::kAlways, DType::kQ4_K},
    {"Q3_K_M", Kind::kDown, When::kFirstSixteenth, DType::kQ5_K},
    {"Q3_K_M", Kind::kDown, When::kAlways, DType::kQ4_K},
    {"Q3_K_M", Kind::kO, When::kAlways, DType::kQ4_K},
    {"Q3_K_L", Kind::kV, When::kAlways, DType::kQ5_K},
    {"Q3_K_L", Kind::kDown, When::kAlways, DType::kQ5_K},
    {"Q3_K_L", Kind::kO, When::kAlways, DType::kQ5_K},
    {"Q4_K_S", Kind::kV, When::kFirst4, DType::kQ5_K},
    {"Q4_K_S", Kind::kDown, When::kFirstEighth, DType::kQ5_K},
    {"Q4_K_M", Kind::kV, When::kEdges, DType::kQ6_K},
    {"Q4_K_M", Kind::kDown, When::kEdges, DType::kQ6_K},
    {"Q5_K_M", Kind::kV, When::kEdges, DType::kQ6_K},
    {"Q5_K_M", Kind::kDown, When::kEdges, DType::kQ6_K},
    {"IQ4_NL", Kind::kV, When::kGrouped, DType::kQ5_K},
    {"IQ4_NL", Kind::kDown, When::kFirstEighthUnweighted, DType::kQ5_K},
    {"IQ4_XS", Kind::kV, When::kGrouped, DType::kQ5_K},
    {"IQ4_XS", Kind::kDown, When::kFirstEighthUnweighted, DType::kQ5_K},
    {"Q4_0", Kind::kDown, When::kFirstEighthWeighted, DType::kQ4_1},
    {"Q5_0", Kind::kDown, When::kFirstEighthWeighted, DType::kQ5_1},
};

// `ordinal`: of the tensor among those of its kind; `count`: of those.
bool Applies(When when, int64_t ordinal, int64_t count, const QuantizeFacts& facts) {
  switch (when) {
    case When::kAlways:
      return true;
    case When::kEdges:
      return ordinal < count / 8 || ordinal >= 7 * count / 8 || (ordinal - count / 8) % 3 == 2;
    case When::kFirst2:
      return ordinal < 2;
    case When::kFirst4:
      return ordinal < 4;
    case When::kFirstEighth:
      return ordinal < count / 8;
    case When::kFirstSixteenth:
      return ordinal < count / 16;
    case When::kFirstEighthUnweighted:
      return !facts.has_importance && ordinal < count / 8;
    case When::kFirstEighthWeighted:
      return facts.has_importance && ordinal < count / 8;
    case When::kGrouped:
      return facts.heads_per_kv >= 4;
  }
  return false;
}

DType MixtureType(const QuantizeRecipe& recipe, Kind kind, int64_t ordinal, int64_t count,
                  const QuantizeFacts& facts) {
  const bool output = kind == Kind::kOutput || (kind == Kind::kEmbedding && facts.tied_embeddings);
  if (output) return recipe.base == DType::kQ8_0 ? recipe.base : DType::kQ6_K;
  // Where eight experts share one attention, its small tensors are worth their bytes.
  if (facts.num_experts == 8) {
    if (kind == Kind::kV || kind == Kind::kK) return DType::kQ8_0;
    if (kind == Kind::kO) {
      for (const std::string_view name :
           {"Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS"}) {
        if (recipe.name == name) return DType::kQ5_K;
      }
      return recipe.base;
    }
  }
  DType type = recipe.base;
  for (const Rule& rule : kRules) {
    if (rule.recipe != recipe.name || rule.kind != kind || !Applies(rule.when, ordinal, count, facts))
      continue;
    type = rule.type;
    break;
  }
  // Llama-70B's shape: V is an eighth of Q.
  const bool large = facts.num_layers == 80 && facts.heads_per_kv == 8 && kind == Kind::kV;
  return large && (type == DType::kQ3_K || type == DType::kQ4_K) ? DType::kQ5_K : type;
}

// For rows that are no multiple of 256: the type of blocks of 32 with about as many bits; else 16 bits.
DType FitRows(DType type, int64_t cols) {
  if (cols % GetDTypeInfo(type).block_size == 0) return type;
  DType smaller = type;
  switch (type) {
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kIQ4_XS:
      smaller = DType::kIQ4_NL;
      break;
    case DType::kQ4_K:
      smaller = DType::kQ5_0;
      break;
    case DType::kQ5_K:
      smaller = DType::kQ5_1;
      break;
    case DType::kQ6_K:
      smaller = DType::kQ8_0;
      break;
    default:
      break;
  }
  return cols % GetDTypeInfo(smaller).block_size == 0 ? smaller : DType::kF16;
}

// Vectors, norms, routers and tables of positions are small and stay as they are.
bool MayQuantize(const GgufTensor& tensor) {
  int wide = 0;
  for (int i = 0; i < tensor.num_dims; ++i) wide += tensor.dims[static_cast<size_t>(i)] > 1;
  if (wide < 2 || tensor.dims[static_cast<size_t>(tensor.num_dims - 1)] == 1) return false;
  const std::string_view name = tensor.name;
  if (!name.ends_with("weight")) return false;
  for (const std::string_view part : {"_norm.weight", "ffn_gate_inp", "position_embd", "token_types",
                                      "rope_freqs", "ssm_conv1d", "shortconv.conv"}) {
    if (name.find(part) != std::string_view::npos) return false;
  }
  return true;
}

}  // namespace

std::span<const QuantizeRecipe> AllQuantizeRecipes() {
  return kRecipes;
}

Result<const QuantizeRecipe*> FindQuantizeRecipe(std::string_view name) {
  std::string upper(name), known;
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  for (const QuantizeRecipe& recipe : kRecipes) {
    if (upper == recipe.name) return &recipe;
    known += (known.empty() ? "" : ", ") + std::string(recipe.name);
  }
  return InvalidArgument("type '{}' is none of {}", Printable(name), known);
}

Result<QuantizeFacts> ReadQuantizeFacts(const GgufFile& file) {
  QuantizeFacts facts;
  ASSIGN_OR_RETURN(const std::string arch, file.String("general.architecture"));
  ASSIGN_OR_RETURN(facts.num_layers, file.IntOr(arch + ".block_count", 0, 0, 1'000'000));
  ASSIGN_OR_RETURN(facts.num_experts, file.IntOr(arch + ".expert_count", 0, 0, 1'000'000));
  const std::string heads_key = arch + ".attention.head_count", kv_key = arch + ".attention.head_count_kv";
  if (facts.num_layers > 0 && file.Has(heads_key)) {
    ASSIGN_OR_RETURN(const auto heads, file.IntPerLayer(heads_key, facts.num_layers, 0, 1'000'000));
    std::vector<int64_t> kv_heads = heads;
    if (file.Has(kv_key)) {
      ASSIGN_OR_RETURN(kv_heads, file.IntPerLayer(kv_key, facts.num_layers, 0, 1'000'000));
    }
    if (kv_heads[0] > 0) facts.heads_per_kv = heads[0] / kv_heads[0];
  }
  facts.tied_embeddings = file.FindTensor("output.weight") == nullptr;
  return facts;
}

Result<DType> ParseWritableType(std::string_view name) {
  const auto writable = [](DType type) {
    const QuantFormat* format = FindQuantFormat(type);
    return format != nullptr && format->encode != nullptr && GetDTypeInfo(type).ggml_type >= 0;
  };
  const auto type = ParseDType(name);
  if (type.ok() && writable(*type)) return type;
  std::string known;
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto candidate = static_cast<DType>(i);
    if (writable(candidate)) known += fmt::format("{}{}", known.empty() ? "" : ", ", DTypeName(candidate));
  }
  return InvalidArgument("type '{}' is none of those that can be written to a GGUF file: {}",
                         type.ok() ? DTypeName(*type) : Printable(name), known);
}

std::vector<std::string> RulesWithoutTensors(std::span<const GgufTensor> tensors, const QuantizeChoices& choices) {
  std::vector<std::string> patterns;
  for (const TensorTypeRule& rule : choices.rules) {
    const std::regex pattern(rule.pattern);
    if (std::none_of(tensors.begin(), tensors.end(),
                     [&](const GgufTensor& tensor) { return std::regex_search(tensor.name, pattern); })) {
      patterns.push_back(rule.pattern);
    }
  }
  return patterns;
}

Result<TensorTypeRule> ParseTensorTypeRule(std::string_view text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string_view::npos || equals == 0) {
    return InvalidArgument("'{}' is not REGEX=TYPE", Printable(text));
  }
  TensorTypeRule rule;
  rule.pattern = text.substr(0, equals);
  ASSIGN_OR_RETURN(rule.type, ParseWritableType(text.substr(equals + 1)));
  try {
    const std::regex checked(rule.pattern);
  } catch (const std::regex_error& error) {
    return InvalidArgument("'{}': {}", Printable(text), error.what());
  }
  return rule;
}

Result<std::vector<DType>> ChooseTypes(const std::string& place, std::span<const GgufTensor> tensors,
                                       const QuantizeFacts& facts, const QuantizeChoices& choices) {
  const QuantizeRecipe& recipe = *choices.recipe;
  std::vector<std::regex> patterns;
  for (const TensorTypeRule& rule : choices.rules) patterns.emplace_back(rule.pattern);
  // Tensors of a kind are counted by layer, whatever their order in the file. Stacked or not, experts share a
  // layer.
  std::vector<int64_t> v_layers;
  for (const GgufTensor& tensor : tensors) {
    if (KindOf(tensor.name) == Kind::kV) v_layers.push_back(LayerOf(tensor.name));
  }
  std::sort(v_layers.begin(), v_layers.end());

  std::vector<DType> types;
  for (const GgufTensor& tensor : tensors) {
    types.push_back(tensor.dtype);
    const Kind kind = KindOf(tensor.name);
    if (!MayQuantize(tensor) || (choices.leave_output && kind == Kind::kOutput)) continue;
    const int64_t cols = tensor.dims[static_cast<size_t>(tensor.num_dims - 1)], layer = LayerOf(tensor.name);
    DType type = recipe.base;
    bool asked = false;
    for (size_t i = 0; i < patterns.size() && !asked; ++i) {
      asked = std::regex_search(tensor.name, patterns[i]);
      if (asked) type = choices.rules[i].type;
    }
    if (!asked && kind == Kind::kOutput && choices.output_type >= 0) {
      type = static_cast<DType>(choices.output_type);
      asked = true;
    }
    if (!asked && kind == Kind::kEmbedding && choices.embedding_type >= 0) {
      type = static_cast<DType>(choices.embedding_type);
      asked = true;
    }
    if (asked && cols % GetDTypeInfo(type).block_size != 0) {
      return Unsupported("{}: tensor '{}': {} columns are no multiple of {}'s block of {}", place,
                         Printable(tensor.name), cols, DTypeName(type), GetDTypeInfo(type).block_size);
    }
    if (!asked && !choices.pure && IsQuantized(recipe.base)) {
      const bool by_v = kind == Kind::kV;
      const int64_t ordinal =
          by_v ? std::lower_bound(v_layers.begin(), v_layers.end(), layer) - v_layers.begin() : layer;
      const int64_t count = by_v ? static_cast<int64_t>(v_layers.size()) : facts.num_layers;
      type = MixtureType(recipe, kind, ordinal, count, facts);
    }
    types.back() = FitRows(type, cols);
  }
  return types;
}

}  // namespace cachalot
