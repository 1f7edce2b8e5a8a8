#include "support/hf_to_gguf.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "formats/gguf_writer.h"
#include "formats/hf_config.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "model/arch/architecture.h"
#include "model/tensor_table.h"
#include "model/weight_reader.h"
#include "quant/format.h"
#include "weights/file_source.h"

namespace cachalot {
namespace {

const std::map<std::string, std::string> kGgufNames = {
    {"llama", "llama"},         {"mistral", "llama"},        {"mixtral", "llama"},         {"qwen2", "qwen2"},
    {"qwen3", "qwen3"},         {"qwen3-moe", "qwen3moe"},   {"deepseek-moe", "deepseek"}, {"deepseek-v2", "deepseek2"},
    {"deepseek-v3", "deepseek2"}};

class Converter {
 public:
  Converter(const HfConfig& config, const ModelSpec& spec, const TensorSource& source, GgufMlaLayout layout)
      : config_(config), spec_(spec), layout_(layout),
        reader_(source, SourceNaming::kHuggingFace, {}, WeightReader::Mode::kLoad) {}

  Status Write(const std::string& folder, const std::string& path) {
    RETURN_IF_ERROR(Metadata());
    RETURN_IF_ERROR(Vocabulary(folder));
    RETURN_IF_ERROR(Tensors());
    return writer_.Write(path, [this](const GgufTensor& tensor, ByteSink& sink) {
      return sink.Append(std::span<const std::byte>(data_.at(tensor.name)));
    });
  }

 private:
  std::string Key(const char* suffix) const { return arch_ + "." + suffix; }
  bool mla() const { return spec_.attention.kind == AttentionKind::kMla; }

  Status Metadata() {
    const AttentionSpec& a = spec_.attention;
    arch_ = kGgufNames.at(spec_.architecture);
    writer_.SetString("general.architecture", arch_);
    writer_.SetString("general.name", spec_.architecture);
    writer_.SetU32(Key("block_count"), spec_.num_all_layers());
    writer_.SetU32(Key("context_length"), spec_.max_context);
    writer_.SetU32(Key("embedding_length"), spec_.hidden_size);
    writer_.SetU32(Key("feed_forward_length"), spec_.intermediate);
    writer_.SetU32(Key("vocab_size"), spec_.vocab_size);
    writer_.SetU32(Key("attention.head_count"), a.num_q_heads);
    writer_.SetF32(Key("attention.layer_norm_rms_epsilon"), spec_.norm_eps);
    ASSIGN_OR_RETURN(const double theta, config_.FloatOr("rope_theta", 10000.0));
    writer_.SetF32(Key("rope.freq_base"), static_cast<float>(theta));
    if (mla()) {
      const bool mainline = layout_ == GgufMlaLayout::kMainline;
      writer_.SetU32(Key("attention.head_count_kv"), mainline ? 1 : a.num_q_heads);
      if (a.q_lora_rank > 0) writer_.SetU32(Key("attention.q_lora_rank"), a.q_lora_rank);
      writer_.SetU32(Key("attention.kv_lora_rank"), a.kv_lora_rank);
      writer_.SetU32(Key("rope.dimension_count"), a.rope_dim);
      writer_.SetU32(Key("attention.key_length"), mainline ? a.kv_lora_rank + a.rope_dim : a.q_head_dim());
      writer_.SetU32(Key("attention.value_length"), mainline ? a.kv_lora_rank : a.v_dim);
      if (mainline) {
        writer_.SetU32(Key("attention.key_length_mla"), a.q_head_dim());
        writer_.SetU32(Key("attention.value_length_mla"), a.v_dim);
      }
    } else {
      writer_.SetU32(Key("attention.head_count_kv"), a.num_kv_heads);
      writer_.SetU32(Key("attention.key_length"), a.head_dim);
      writer_.SetU32(Key("attention.value_length"), a.head_dim);
      writer_.SetU32(Key("rope.dimension_count"), a.rope.dim);
      if (spec_.layers.front().window > 0) writer_.SetU32(Key("attention.sliding_window"), spec_.layers.front().window);
    }
    RETURN_IF_ERROR(Yarn());
    return Experts();
  }

  Status Yarn() {
    if (!config_.Has("rope_scaling")) return Status::Ok();
    ASSIGN_OR_RETURN(const HfConfig rope, config_.Object("rope_scaling"));
    ASSIGN_OR_RETURN(const std::string old_type, rope.StringOr("type", "default"));
    ASSIGN_OR_RETURN(const std::string type, rope.StringOr("rope_type", old_type));
    if (type != "yarn") return Status::Ok();  // llama3 travels as rope_freqs.weight
    writer_.SetString(Key("rope.scaling.type"), "yarn");
    ASSIGN_OR_RETURN(const double factor, rope.Float("factor"));
    ASSIGN_OR_RETURN(const int64_t original, rope.Int("original_max_position_embeddings", 1, INT32_MAX));
    ASSIGN_OR_RETURN(const double all_dim, rope.FloatOr("mscale_all_dim", 0.0));
    writer_.SetF32(Key("rope.scaling.factor"), static_cast<float>(factor));
    writer_.SetU32(Key("rope.scaling.original_context_length"), static_cast<uint32_t>(original));
    if (layout_ != GgufMlaLayout::kLegacy) {
      writer_.SetF32(Key("rope.scaling.yarn_log_multiplier"), static_cast<float>(0.1 * all_dim));
    }
    return Status::Ok();
  }

  Status Experts() {
    const MoeSpec& moe = spec_.moe;
    if (moe.num_experts == 0) return Status::Ok();
    writer_.SetU32(Key("expert_count"), moe.num_experts);
    writer_.SetU32(Key("expert_used_count"), moe.top_k);
    if (arch_ == "llama") return Status::Ok();
    writer_.SetU32(Key("expert_feed_forward_length"), moe.intermediate);
    if (arch_ == "qwen3moe") return Status::Ok();
    int32_t first = 0;
    while (!spec_.layers[static_cast<size_t>(first)].moe) ++first;
    writer_.SetU32(Key("leading_dense_block_count"), first);
    writer_.SetU32(Key("expert_shared_count"), moe.shared_intermediate / moe.intermediate);
    writer_.SetF32(Key("expert_weights_scale"), moe.scaling);
    writer_.SetBool(Key("expert_weights_norm"), moe.normalize);
    const bool sigmoid = moe.score == MoeScore::kSigmoid;
    if (!sigmoid || layout_ != GgufMlaLayout::kLegacy) writer_.SetU32(Key("expert_gating_func"), sigmoid ? 2 : 1);
    if (moe.group_score != MoeGroupScore::kNone) {
      writer_.SetU32(Key("expert_group_count"), moe.num_groups);
      writer_.SetU32(Key("expert_group_used_count"), moe.top_k_groups);
    }
    if (spec_.num_mtp_layers > 0) writer_.SetU32(Key("nextn_predict_layers"), spec_.num_mtp_layers);
    return Status::Ok();
  }

  // tokenizer.json → tokenizer.ggml.*, for byte-level BPE of DeepSeek-V3's kind (the one that llama.cpp is asked to run).
  Status Vocabulary(const std::string& folder) {
    const std::string file = folder + "/tokenizer.json";
    if (!FileExists(file)) return Status::Ok();
    ASSIGN_OR_RETURN(const nlohmann::json json, ParseJsonFile(file, {.max_bytes = 64 << 20}));
    std::vector<std::string> tokens(static_cast<size_t>(spec_.vocab_size));
    std::vector<int32_t> types(tokens.size(), 1);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = "[PAD" + std::to_string(i) + "]";
    for (const auto& [text, id] : json.at("model").at("vocab").items()) tokens.at(id.get<size_t>()) = text;
    for (const auto& added : json.at("added_tokens")) {
      const auto id = added.at("id").get<size_t>();
      tokens.at(id) = added.at("content").get<std::string>();
      types.at(id) = added.at("special").get<bool>() ? 3 : 4;
    }
    std::vector<std::string> merges;
    for (const auto& merge : json.at("model").at("merges")) {
      merges.push_back(merge.is_string() ? merge.get<std::string>()
                                         : merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>());
    }
    ASSIGN_OR_RETURN(const int64_t bos, config_.IntOr("bos_token_id", 0, 0, spec_.vocab_size));
    ASSIGN_OR_RETURN(const int64_t eos, config_.IntOr("eos_token_id", 1, 0, spec_.vocab_size));
    writer_.SetString("tokenizer.ggml.model", "gpt2");
    writer_.SetString("tokenizer.ggml.pre", "deepseek-v3");
    writer_.SetStrings("tokenizer.ggml.tokens", std::move(tokens));
    writer_.SetI32s("tokenizer.ggml.token_type", types);
    writer_.SetStrings("tokenizer.ggml.merges", std::move(merges));
    writer_.SetU32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(bos));
    writer_.SetU32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(eos));
    writer_.SetBool("tokenizer.ggml.add_bos_token", true);
    return Status::Ok();
  }

  Status Add(const std::string& name, DType dtype, std::vector<int64_t> dims, const std::vector<float>& values) {
    RETURN_IF_ERROR(writer_.AddTensor(name, dtype, dims));
    std::vector<std::byte>& bytes = data_[name];
    bytes.resize(static_cast<size_t>(DTypeBytes(dtype, static_cast<int64_t>(values.size()))));
    FindQuantFormat(dtype)->encode(values.data(), bytes.data(), static_cast<int64_t>(values.size()));
    return Status::Ok();
  }

  DType WeightType(const WeightRef& ref) const {
    return reader_.TypeOf(ref) == DType::kFP8E4M3 ? DType::kF32 : DType::kBF16;
  }
  static std::string GgufName(const WeightRef& ref) {
    return TensorNames(ref.role, SourceNaming::kGguf, ref.layer, ref.expert).front();
  }

  Status AddMatrix(const WeightRef& ref, int64_t rows, int64_t cols) {
    ASSIGN_OR_RETURN(const auto values, reader_.Values(ref, rows, cols));
    return Add(GgufName(ref), WeightType(ref), {rows, cols}, values);
  }

  Status AddVector(const WeightRef& ref, int64_t size) {
    ASSIGN_OR_RETURN(const auto values, reader_.Values(ref, 1, size));
    return Add(GgufName(ref), DType::kF32, {size}, values);
  }

  // Half-split pairs (i, i + d/2) become interleaved ones (2i, 2i + 1): what the converter does for "llama".
  Status AddPermuted(const WeightRef& ref, int64_t heads, int64_t cols) {
    const int64_t dim = spec_.attention.head_dim;
    ASSIGN_OR_RETURN(const auto values, reader_.Values(ref, heads * dim, cols));
    std::vector<float> permuted(values.size());
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < dim; ++i) {
        const int64_t to = i < dim / 2 ? 2 * i : 2 * (i - dim / 2) + 1;
        std::copy_n(values.begin() + (h * dim + i) * cols, cols, permuted.begin() + (h * dim + to) * cols);
      }
    }
    return Add(GgufName(ref), WeightType(ref), {heads * dim, cols}, permuted);
  }

  Status AddExperts(TensorRole role, int32_t layer, int64_t rows, int64_t cols) {
    std::vector<float> all;
    for (int32_t e = 0; e < spec_.moe.num_experts; ++e) {
      ASSIGN_OR_RETURN(const auto values, reader_.Values({role, layer, e}, rows, cols));
      all.insert(all.end(), values.begin(), values.end());
    }
    return Add(GgufName({role, layer}), WeightType({role, layer}), {spec_.moe.num_experts, rows, cols}, all);
  }

  Status Tensors() {
    const int64_t hidden = spec_.hidden_size;
    RETURN_IF_ERROR(AddMatrix({TensorRole::kEmbedding}, spec_.vocab_size, hidden));
    if (!spec_.tied_embeddings) RETURN_IF_ERROR(AddMatrix({TensorRole::kHead}, spec_.vocab_size, hidden));
    RETURN_IF_ERROR(AddVector({TensorRole::kFinalNorm}, hidden));
    RETURN_IF_ERROR(RopeFreqs());
    for (int32_t layer = 0; layer < spec_.num_all_layers(); ++layer) {
      RETURN_IF_ERROR(AddVector({TensorRole::kAttentionNorm, layer}, hidden));
      RETURN_IF_ERROR(AddVector({TensorRole::kFfnNorm, layer}, hidden));
      RETURN_IF_ERROR(mla() ? AddMla(layer) : AddGqa(layer));
      RETURN_IF_ERROR(spec_.layers[static_cast<size_t>(layer)].moe ? AddMoe(layer) : AddDense(layer));
      if (layer < spec_.num_layers) continue;
      RETURN_IF_ERROR(AddVector({TensorRole::kMtpEmbeddingNorm, layer}, hidden));
      RETURN_IF_ERROR(AddVector({TensorRole::kMtpHiddenNorm, layer}, hidden));
      RETURN_IF_ERROR(AddMatrix({TensorRole::kMtpProjection, layer}, hidden, 2 * hidden));
      RETURN_IF_ERROR(AddVector({TensorRole::kMtpNorm, layer}, hidden));
    }
    return Status::Ok();
  }

  // The divisors of Llama-3's scaling: unscaled frequency / scaled one.
  Status RopeFreqs() {
    if (mla() || !config_.Has("rope_scaling")) return Status::Ok();
    const RopeSpec& rope = spec_.attention.rope;
    ASSIGN_OR_RETURN(const double theta, config_.FloatOr("rope_theta", 10000.0));
    std::vector<float> divisors;
    for (int32_t i = 0; i < rope.dim / 2; ++i) {
      divisors.push_back(static_cast<float>(std::pow(theta, -2.0 * i / rope.dim) / rope.inv_freq[static_cast<size_t>(i)]));
    }
    return Add("rope_freqs.weight", DType::kF32, {rope.dim / 2}, divisors);
  }

  Status AddGqa(int32_t layer) {
    const AttentionSpec& a = spec_.attention;
    const int64_t hidden = spec_.hidden_size;
    if (a.rope.style == RopeStyle::kHalf && (arch_ == "llama" || arch_ == "deepseek")) {
      RETURN_IF_ERROR(AddPermuted({TensorRole::kQ, layer}, a.num_q_heads, hidden));
      RETURN_IF_ERROR(AddPermuted({TensorRole::kK, layer}, a.num_kv_heads, hidden));
    } else {
      RETURN_IF_ERROR(AddMatrix({TensorRole::kQ, layer}, int64_t{a.num_q_heads} * a.head_dim, hidden));
      RETURN_IF_ERROR(AddMatrix({TensorRole::kK, layer}, int64_t{a.num_kv_heads} * a.head_dim, hidden));
    }
    RETURN_IF_ERROR(AddMatrix({TensorRole::kV, layer}, int64_t{a.num_kv_heads} * a.head_dim, hidden));
    RETURN_IF_ERROR(AddMatrix({TensorRole::kO, layer}, hidden, int64_t{a.num_q_heads} * a.head_dim));
    if (a.qkv_bias) {
      RETURN_IF_ERROR(AddVector({TensorRole::kQBias, layer}, int64_t{a.num_q_heads} * a.head_dim));
      RETURN_IF_ERROR(AddVector({TensorRole::kKBias, layer}, int64_t{a.num_kv_heads} * a.head_dim));
      RETURN_IF_ERROR(AddVector({TensorRole::kVBias, layer}, int64_t{a.num_kv_heads} * a.head_dim));
    }
    if (!a.qk_norm) return Status::Ok();
    RETURN_IF_ERROR(AddVector({TensorRole::kQNorm, layer}, a.head_dim));
    return AddVector({TensorRole::kKNorm, layer}, a.head_dim);
  }

  Status AddMla(int32_t layer) {
    const AttentionSpec& a = spec_.attention;
    const int64_t hidden = spec_.hidden_size;
    const int64_t heads = a.num_q_heads;
    if (a.q_lora_rank > 0) {
      RETURN_IF_ERROR(AddMatrix({TensorRole::kQA, layer}, a.q_lora_rank, hidden));
      RETURN_IF_ERROR(AddVector({TensorRole::kQANorm, layer}, a.q_lora_rank));
      RETURN_IF_ERROR(AddMatrix({TensorRole::kQB, layer}, heads * a.q_head_dim(), a.q_lora_rank));
    } else {
      RETURN_IF_ERROR(AddMatrix({TensorRole::kQ, layer}, heads * a.q_head_dim(), hidden));
    }
    RETURN_IF_ERROR(AddMatrix({TensorRole::kKvA, layer}, a.kv_lora_rank + a.rope_dim, hidden));
    RETURN_IF_ERROR(AddVector({TensorRole::kKvANorm, layer}, a.kv_lora_rank));
    RETURN_IF_ERROR(AddMatrix({TensorRole::kO, layer}, hidden, heads * a.v_dim));
    const int64_t lora = a.kv_lora_rank;
    const WeightRef ref = {TensorRole::kKvB, layer};
    if (layout_ != GgufMlaLayout::kMainline) {
      RETURN_IF_ERROR(AddMatrix(ref, heads * (a.nope_dim + a.v_dim), lora));
      if (layout_ == GgufMlaLayout::kLegacy) return Status::Ok();
    }
    ASSIGN_OR_RETURN(const auto kv_b, reader_.Values(ref, heads * (a.nope_dim + a.v_dim), lora));
    std::vector<float> k_b;
    std::vector<float> v_b;
    for (int64_t h = 0; h < heads; ++h) {
      const float* head = kv_b.data() + h * (a.nope_dim + a.v_dim) * lora;
      for (int64_t l = 0; l < lora; ++l) {
        for (int64_t d = 0; d < a.nope_dim; ++d) k_b.push_back(head[d * lora + l]);
      }
      v_b.insert(v_b.end(), head + a.nope_dim * lora, head + (a.nope_dim + a.v_dim) * lora);
    }
    const bool two_dims = layout_ == GgufMlaLayout::kHybrid;
    RETURN_IF_ERROR(Add(GgufName({TensorRole::kKB, layer}), WeightType(ref),
                        two_dims ? std::vector<int64_t>{heads * lora, a.nope_dim} : std::vector<int64_t>{heads, lora, a.nope_dim}, k_b));
    return Add(GgufName({TensorRole::kVB, layer}), WeightType(ref),
               two_dims ? std::vector<int64_t>{heads * a.v_dim, lora} : std::vector<int64_t>{heads, a.v_dim, lora}, v_b);
  }

  Status AddDense(int32_t layer) {
    RETURN_IF_ERROR(AddMatrix({TensorRole::kGate, layer}, spec_.intermediate, spec_.hidden_size));
    RETURN_IF_ERROR(AddMatrix({TensorRole::kUp, layer}, spec_.intermediate, spec_.hidden_size));
    return AddMatrix({TensorRole::kDown, layer}, spec_.hidden_size, spec_.intermediate);
  }

  Status AddMoe(int32_t layer) {
    const MoeSpec& moe = spec_.moe;
    const int64_t hidden = spec_.hidden_size;
    ASSIGN_OR_RETURN(const auto router, reader_.Values({TensorRole::kRouter, layer}, moe.num_experts, hidden));
    RETURN_IF_ERROR(Add(GgufName({TensorRole::kRouter, layer}), DType::kF32, {moe.num_experts, hidden}, router));
    if (moe.choice_bias) RETURN_IF_ERROR(AddVector({TensorRole::kRouterBias, layer}, moe.num_experts));
    RETURN_IF_ERROR(AddExperts(TensorRole::kExpertGate, layer, moe.intermediate, hidden));
    RETURN_IF_ERROR(AddExperts(TensorRole::kExpertUp, layer, moe.intermediate, hidden));
    RETURN_IF_ERROR(AddExperts(TensorRole::kExpertDown, layer, hidden, moe.intermediate));
    if (moe.shared_intermediate == 0) return Status::Ok();
    RETURN_IF_ERROR(AddMatrix({TensorRole::kSharedGate, layer}, moe.shared_intermediate, hidden));
    RETURN_IF_ERROR(AddMatrix({TensorRole::kSharedUp, layer}, moe.shared_intermediate, hidden));
    return AddMatrix({TensorRole::kSharedDown, layer}, hidden, moe.shared_intermediate);
  }

  const HfConfig& config_;
  const ModelSpec& spec_;
  const GgufMlaLayout layout_;
  std::string arch_;
  WeightReader reader_;
  GgufWriter writer_;
  std::map<std::string, std::vector<std::byte>> data_;
};

}  // namespace

Status WriteHfAsGguf(const std::string& folder, GgufMlaLayout layout, const std::string& path) {
  ASSIGN_OR_RETURN(const HfConfig config, HfConfig::Load(folder));
  ASSIGN_OR_RETURN(const ModelSpec spec, SpecFromHf(config));
  ASSIGN_OR_RETURN(auto tensors, SafetensorsFolder::Open(folder));
  ASSIGN_OR_RETURN(const auto source, MakeSafetensorsSource(std::move(tensors), {}));
  return Converter(config, spec, *source, layout).Write(folder, path);
}

}  // namespace cachalot
