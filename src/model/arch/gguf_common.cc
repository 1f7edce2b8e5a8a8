#include "formats/text.h"
#include "model/arch/gguf_common.h"

#include <cmath>

#include "model/arch/hf_common.h"

namespace cachalot {
namespace {

// Divisors of the frequencies, one per pair: how GGUF stores Llama-3's scaling.
Status ApplyRopeFreqs(const GgufFile& file, RopeSpec* rope) {
  const GgufTensor* tensor = file.FindTensor("rope_freqs.weight");
  if (tensor == nullptr) return Status::Ok();
  const auto half = static_cast<int64_t>(rope->inv_freq.size());
  if (tensor->dtype != DType::kF32 || tensor->num_dims != 1 || tensor->dims[0] != half) {
    return Corrupt("{}: rope_freqs.weight is {} {}, expected F32 [{}]", file.path(), DTypeName(tensor->dtype),
                   ShapeString(tensor->dims.data(), tensor->num_dims), half);
  }
  std::vector<float> divisors(static_cast<size_t>(half));
  RETURN_IF_ERROR(file.files()[tensor->file_idx]->ReadAt(tensor->offset, std::as_writable_bytes(std::span(divisors))));
  for (int64_t i = 0; i < half; ++i) {
    if (!(divisors[i] > 0) || !std::isfinite(divisors[i])) {
      return Corrupt("{}: rope_freqs.weight[{}] is {}, must be positive", file.path(), i, divisors[i]);
    }
    rope->inv_freq[i] /= divisors[i];
  }
  return Status::Ok();
}

}  // namespace

Result<GgufKeys> GgufKeys::Of(const GgufFile& file) {
  GgufKeys keys;
  ASSIGN_OR_RETURN(keys.prefix_, file.String("general.architecture"));
  keys.prefix_ += '.';
  return keys;
}

Result<int32_t> GgufInt(const GgufFile& file, const std::string& key, int64_t min, int64_t max) {
  ASSIGN_OR_RETURN(const int64_t value, file.Int(key, min, max));
  return static_cast<int32_t>(value);
}

Result<int32_t> GgufIntOr(const GgufFile& file, const std::string& key, int64_t default_value, int64_t min, int64_t max) {
  ASSIGN_OR_RETURN(const int64_t value, file.IntOr(key, default_value, min, max));
  return static_cast<int32_t>(value);
}

Result<ModelSpec> GgufDenseSpec(const GgufFile& file) {
  ASSIGN_OR_RETURN(const GgufKeys key, GgufKeys::Of(file));
  ModelSpec spec;
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr || embedding->num_dims != 2) {
    return Corrupt("{}: there is no two-dimensional token_embd.weight: is this a vocabulary-only file?", file.path());
  }
  if (embedding->dims[0] > kMaxVocab) {
    return Corrupt("{}: token_embd.weight has {} rows, the limit is {}", file.path(), embedding->dims[0], kMaxVocab);
  }
  spec.vocab_size = static_cast<int32_t>(embedding->dims[0]);
  ASSIGN_OR_RETURN(spec.hidden_size, GgufInt(file, key("embedding_length"), 1, kMaxWidth));
  ASSIGN_OR_RETURN(spec.num_layers, GgufInt(file, key("block_count"), 1, kMaxLayers));
  ASSIGN_OR_RETURN(const auto intermediate, file.IntPerLayer(key("feed_forward_length"), spec.num_layers, 0, kMaxWidth));
  spec.intermediate = static_cast<int32_t>(intermediate.front());
  for (int64_t value : intermediate) {
    if (value != spec.intermediate) {
      return Unsupported("{}: {} differs between layers", file.path(), key("feed_forward_length"));
    }
  }
  ASSIGN_OR_RETURN(spec.max_context, GgufIntOr(file, key("context_length"), 2048, 1, kMaxPositions));
  ASSIGN_OR_RETURN(const double eps, file.Float(key("attention.layer_norm_rms_epsilon"), 0.0, 1.0));
  spec.norm_eps = static_cast<float>(eps);
  spec.tied_embeddings = file.FindTensor("output.weight") == nullptr;
  spec.layers.assign(static_cast<size_t>(spec.num_layers), LayerSpec{});
  return spec;
}

Result<RopeScaling> GgufRopeScaling(const GgufFile& file) {
  ASSIGN_OR_RETURN(const GgufKeys key, GgufKeys::Of(file));
  RopeScaling scaling;
  ASSIGN_OR_RETURN(const double old_linear, file.FloatOr(key("rope.scale_linear"), 1.0, 1.0, 1e6));
  ASSIGN_OR_RETURN(const std::string type, file.StringOr(key("rope.scaling.type"), old_linear > 1 ? "linear" : "none"));
  if (type == "none") return scaling;
  if (type != "linear" && type != "yarn") {
    return Unsupported("{}: {} '{}' is none of none, linear, yarn", file.path(), key("rope.scaling.type"), Printable(type));
  }
  scaling.kind = type == "yarn" ? RopeScalingKind::kYarn : RopeScalingKind::kLinear;
  ASSIGN_OR_RETURN(scaling.factor, file.FloatOr(key("rope.scaling.factor"), old_linear, 1.0, 1e6));
  if (scaling.kind == RopeScalingKind::kLinear) return scaling;
  ASSIGN_OR_RETURN(const int64_t context, file.IntOr(key("context_length"), 2048, 1, kMaxPositions));
  ASSIGN_OR_RETURN(scaling.original_context,
                   file.IntOr(key("rope.scaling.original_context_length"), context, 1, kMaxPositions));
  ASSIGN_OR_RETURN(scaling.beta_fast, file.FloatOr(key("rope.scaling.yarn_beta_fast"), 32.0, 1e-3, 1e6));
  ASSIGN_OR_RETURN(scaling.beta_slow, file.FloatOr(key("rope.scaling.yarn_beta_slow"), 1.0, 1e-3, 1e6));
  ASSIGN_OR_RETURN(scaling.attention_factor, file.FloatOr(key("rope.scaling.attn_factor"), 0.0, 0.0, 100.0));
  return scaling;
}

Status GgufGqa(const GgufFile& file, RopeStyle style, ModelSpec* spec) {
  ASSIGN_OR_RETURN(const GgufKeys key, GgufKeys::Of(file));
  AttentionSpec& attention = spec->attention;
  attention.kind = AttentionKind::kGqa;
  ASSIGN_OR_RETURN(const auto q_heads, file.IntPerLayer(key("attention.head_count"), spec->num_layers, 1, kMaxHeads));
  attention.num_q_heads = static_cast<int32_t>(q_heads.front());
  attention.num_kv_heads = attention.num_q_heads;
  std::vector<int64_t> kv_heads(q_heads);
  if (file.Has(key("attention.head_count_kv"))) {
    ASSIGN_OR_RETURN(kv_heads, file.IntPerLayer(key("attention.head_count_kv"), spec->num_layers, 1, kMaxHeads));
    attention.num_kv_heads = static_cast<int32_t>(kv_heads.front());
  }
  for (int32_t i = 0; i < spec->num_layers; ++i) {
    if (q_heads[i] != attention.num_q_heads || kv_heads[i] != attention.num_kv_heads) {
      return Unsupported("{}: head counts differ between layers", file.path());
    }
  }
  if (!file.Has(key("attention.key_length")) && spec->hidden_size % attention.num_q_heads != 0) {
    return InvalidArgument("{}: {} {} is no multiple of {} {}", file.path(), key("embedding_length"), spec->hidden_size,
                           key("attention.head_count"), attention.num_q_heads);
  }
  ASSIGN_OR_RETURN(attention.head_dim, GgufIntOr(file, key("attention.key_length"),
                                                 spec->hidden_size / attention.num_q_heads, 1, kMaxHeadDim));
  ASSIGN_OR_RETURN(const int32_t value_dim,
                   GgufIntOr(file, key("attention.value_length"), attention.head_dim, 1, kMaxHeadDim));
  if (value_dim != attention.head_dim) {
    return Unsupported("{}: {} {} differs from {} {}", file.path(), key("attention.value_length"), value_dim,
                       key("attention.key_length"), attention.head_dim);
  }
  attention.rope.style = style;
  ASSIGN_OR_RETURN(attention.rope.dim,
                   GgufIntOr(file, key("rope.dimension_count"), attention.head_dim, 2, attention.head_dim));
  ASSIGN_OR_RETURN(const double theta, file.FloatOr(key("rope.freq_base"), 10000.0, 1.0, 1e12));
  ASSIGN_OR_RETURN(const RopeScaling scaling, GgufRopeScaling(file));
  attention.rope.inv_freq = RopeInvFreq(attention.rope.dim, theta, scaling);
  RETURN_IF_ERROR(ApplyRopeFreqs(file, &attention.rope));
  attention.rope.mscale = static_cast<float>(RopeMscale(scaling));
  attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(attention.head_dim)));
  ASSIGN_OR_RETURN(const int32_t window, GgufIntOr(file, key("attention.sliding_window"), 0, 0, kMaxPositions));
  for (auto& layer : spec->layers) layer.window = window;
  return Status::Ok();
}

}  // namespace cachalot
