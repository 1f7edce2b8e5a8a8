// A Hugging Face folder as the GGUF file that llama.cpp's converter would make of it: its names, experts stacked,
// the q and k of interleaving architectures reordered, kv_b cut into a transposed k_b and v_b, FP8 blocks scaled.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "formats/hf_config.h"
#include "formats/safetensors.h"
#include "formats/text.h"
#include "kernels/matmul/packed_matrix.h"
#include "model/arch/architecture.h"
#include "model/tensor_table.h"
#include "quant/format.h"
#include "tasks/hf_gguf_metadata.h"
#include "tasks/quantize_source.h"
#include "tokenizer/vocab_export.h"
#include "weights/file_source.h"

namespace cachalot {
namespace {

using enum TensorRole;

// How the rows of a tensor are made of those of its parts.
enum class Layout {
  kRows,         // the parts' rows, one part behind the other
  kInterleaved,  // within each head row i + d/2 * j (j 0 or 1) comes to 2i + j
  kKeyB,         // [heads, latent, nope]: the key rows of each head of kv_b, transposed
  kValueB,       // [heads, v, latent]: its value rows
  kConstants,
};

// A matrix of the folder.
struct Part {
  const SourceTensor* tensor = nullptr;
  TensorBytes bytes;
  const QuantFormat* format = nullptr;
  int64_t rows = 0, cols = 0, row_bytes = 0;
  std::vector<float> scales;  // of an FP8 matrix, by blocks
};

struct Composed {
  Layout layout = Layout::kRows;
  std::vector<size_t> parts;
  std::vector<float> constants;
};

class HfQuantizeSource final : public QuantizeSource {
 public:
  Status Open(const std::string& folder) {
    place_ = folder;
    ASSIGN_OR_RETURN(const HfConfig config, HfConfig::Load(folder));
    ASSIGN_OR_RETURN(spec_, SpecFromHf(config));
    ASSIGN_OR_RETURN(folder_, SafetensorsFolder::Open(folder));
    ASSIGN_OR_RETURN(source_, MakeSafetensorsSource(folder_, {}));
    // Many conversions of V3 leave the MTP layers out.
    if (spec_.num_mtp_layers > 0 && Find({kMtpHiddenNorm, spec_.num_layers}) == nullptr) {
      spec_.num_mtp_layers = 0;
      spec_.layers.resize(static_cast<size_t>(spec_.num_layers));
    }
    GgufWriter metadata;
    const std::string name = std::filesystem::path(folder + "/").parent_path().filename().string();
    RETURN_IF_ERROR(SetHfMetadata(config, spec_, name, &metadata));
    const Status vocab = ExportVocab(folder, spec_.vocab_size, &metadata);
    if (!vocab.ok() && vocab.code() != StatusCode::kNotFound) return vocab;
    entries_ = metadata.entries();
    RETURN_IF_ERROR(AddTensors(config));
    const bool mla = spec_.attention.kind == AttentionKind::kMla;
    facts_ = {.num_layers = spec_.num_all_layers(),
              .num_experts = spec_.moe.num_experts,
              .heads_per_kv = spec_.attention.num_q_heads / (mla ? 1 : spec_.attention.num_kv_heads),
              .tied_embeddings = spec_.tied_embeddings};
    return Status::Ok();
  }

  std::span<const std::byte> Raw(size_t) const override { return {}; }

  void DecodeRow(size_t index, int64_t row, float* values) const override {
    const Composed& composed = composed_[index];
    const AttentionSpec& a = spec_.attention;
    if (composed.layout == Layout::kConstants) {
      std::copy(composed.constants.begin(), composed.constants.end(), values);
      return;
    }
    const Part& first = parts_[composed.parts.front()];
    switch (composed.layout) {
      case Layout::kRows:
        Decode(parts_[composed.parts[static_cast<size_t>(row / first.rows)]], row % first.rows, 0, first.cols, values);
        break;
      case Layout::kInterleaved: {
        const int64_t head = row / a.head_dim, i = row % a.head_dim;
        Decode(first, head * a.head_dim + i / 2 + (i % 2) * (a.head_dim / 2), 0, first.cols, values);
        break;
      }
      case Layout::kKeyB: {
        const int64_t head = row / a.kv_lora_rank, latent = row % a.kv_lora_rank;
        for (int64_t d = 0; d < a.nope_dim; ++d)
          Decode(first, head * (a.nope_dim + a.v_dim) + d, latent, 1, values + d);
        break;
      }
      case Layout::kValueB: {
        const int64_t head = row / a.v_dim, d = row % a.v_dim;
        Decode(first, head * (a.nope_dim + a.v_dim) + a.nope_dim + d, 0, first.cols, values);
        break;
      }
      case Layout::kConstants:
        break;
    }
  }

  void ReleaseRows(size_t index, int64_t begin, int64_t count) const override {
    const GgufTensor& tensor = tensors_[index];
    int64_t rows = 1;
    for (int i = 0; i + 1 < tensor.num_dims; ++i) rows *= tensor.dims[static_cast<size_t>(i)];
    if (begin + count < rows) return;
    for (const size_t part : composed_[index].parts) source_->Release(*parts_[part].tensor);
  }

 private:
  struct Ref {
    TensorRole role;
    int32_t layer = 0;
    int32_t expert = 0;
  };

  const SourceTensor* Find(const Ref& ref) const {
    for (const auto& name : TensorNames(ref.role, SourceNaming::kHuggingFace, ref.layer, ref.expert)) {
      if (const SourceTensor* tensor = source_->Find(name)) return tensor;
    }
    return nullptr;
  }

  // `count` values of a row, from column `col` on.
  static void Decode(const Part& part, int64_t row, int64_t col, int64_t count, float* values) {
    const int64_t value_bytes = part.row_bytes / part.cols;
    part.format->decode(part.bytes.data + row * part.row_bytes + col * value_bytes, values, count);
    if (part.scales.empty()) return;
    const int64_t blocks = (part.cols + kFp8BlockSize - 1) / kFp8BlockSize;
    const float* scales = part.scales.data() + row / kFp8BlockSize * blocks;
    for (int64_t i = 0; i < count; ++i) values[i] *= scales[(col + i) / kFp8BlockSize];
  }

  Result<size_t> AddPart(const Ref& ref, int64_t rows, int64_t cols) {
    Part part;
    part.tensor = Find(ref);
    part.rows = rows;
    part.cols = cols;
    if (part.tensor == nullptr) {
      return Corrupt("{}: tensor '{}' is missing", place_,
                     TensorNames(ref.role, SourceNaming::kHuggingFace, ref.layer, ref.expert).front());
    }
    const SourceTensor& tensor = *part.tensor;
    const int64_t wanted[] = {rows, cols};
    const bool vector = rows == 1 && tensor.num_dims == 1 && tensor.dims[0] == cols;
    if (!vector && (tensor.num_dims != 2 || tensor.dims[0] != rows || tensor.dims[1] != cols)) {
      return Corrupt("{}: tensor '{}' has shape {}, the configuration asks for {}", place_, Printable(tensor.name),
                     ShapeString(tensor.dims, tensor.num_dims), ShapeString(wanted, 2));
    }
    part.format = FindQuantFormat(tensor.dtype);
    if (part.format == nullptr || IsQuantized(tensor.dtype)) {
      return Unsupported("{}: tensor '{}' has type {}, which this version cannot read", place_,
                         Printable(tensor.name), DTypeName(tensor.dtype));
    }
    part.row_bytes = DTypeBytes(tensor.dtype, cols);
    if (tensor.dtype == DType::kFP8E4M3) {
      ASSIGN_OR_RETURN(part.scales, Scales(tensor, rows, cols));
    }
    ASSIGN_OR_RETURN(part.bytes, source_->Fetch(tensor));
    parts_.push_back(std::move(part));
    return parts_.size() - 1;
  }

  Result<std::vector<float>> Scales(const SourceTensor& tensor, int64_t rows, int64_t cols) const {
    const std::string name = tensor.name + "_scale_inv";
    const SourceTensor* scales = source_->Find(name);
    const int64_t wanted[] = {(rows + kFp8BlockSize - 1) / kFp8BlockSize, (cols + kFp8BlockSize - 1) / kFp8BlockSize};
    if (scales == nullptr) return Corrupt("{}: tensor '{}' is missing (scales of an FP8 weight)", place_, Printable(name));
    if (scales->dtype != DType::kF32 || scales->num_dims != 2 || !std::equal(wanted, wanted + 2, scales->dims)) {
      return Corrupt("{}: tensor '{}' is {} {}, expected F32 {}", place_, Printable(name), DTypeName(scales->dtype),
                     ShapeString(scales->dims, scales->num_dims), ShapeString(wanted, 2));
    }
    ASSIGN_OR_RETURN(const TensorBytes bytes, source_->Fetch(*scales));
    std::vector<float> values(static_cast<size_t>(scales->num_values()));
    std::memcpy(values.data(), bytes.data, values.size() * sizeof(float));
    return values;
  }

  void Add(std::string name, DType dtype, DType stored, std::vector<int64_t> dims, Composed composed) {
    GgufTensor tensor{.name = std::move(name), .dtype = dtype, .num_dims = static_cast<int>(dims.size())};
    int64_t values = 1;
    for (size_t i = 0; i < dims.size(); ++i) values *= tensor.dims[i] = dims[i];
    tensor.bytes = DTypeBytes(dtype, values);
    tensors_.push_back(std::move(tensor));
    stored_types_.push_back(stored);
    composed_.push_back(std::move(composed));
  }

  static std::string GgufName(const Ref& ref) {
    return TensorNames(ref.role, SourceNaming::kGguf, ref.layer, 0).front();
  }

  // Vectors and routers are F32 in GGUF files.
  enum class Keep { kType, kF32 };
  Status AddComposed(TensorRole as, const Ref& ref, int64_t rows, int64_t cols, std::vector<int64_t> dims,
                     Layout layout, Keep keep = Keep::kType) {
    ASSIGN_OR_RETURN(const size_t part, AddPart(ref, rows, cols));
    const DType stored = parts_[part].tensor->dtype;
    const bool f32 = keep == Keep::kF32 || stored == DType::kFP8E4M3;
    Add(GgufName({as, ref.layer}), f32 ? DType::kF32 : stored, stored, std::move(dims), {layout, {part}, {}});
    return Status::Ok();
  }
  Status Matrix(const Ref& ref, int64_t rows, int64_t cols, Layout layout = Layout::kRows) {
    return AddComposed(ref.role, ref, rows, cols, {rows, cols}, layout);
  }
  Status Vector(const Ref& ref, int64_t size) {
    return AddComposed(ref.role, ref, 1, size, {size}, Layout::kRows, Keep::kF32);
  }
  Status IfPresent(const Ref& ref, int64_t rows, int64_t cols) {
    return Find(ref) == nullptr ? Status::Ok() : Matrix(ref, rows, cols);
  }

  Status Experts(TensorRole role, int32_t layer, int64_t rows, int64_t cols) {
    Composed composed;
    DType stored = DType::kF32;
    for (int32_t e = 0; e < spec_.moe.num_experts; ++e) {
      ASSIGN_OR_RETURN(const size_t part, AddPart({role, layer, e}, rows, cols));
      composed.parts.push_back(part);
      const DType type = parts_[part].tensor->dtype;
      if (e > 0 && type != stored) {
        return Unsupported("{}: expert {} of layer {} is {}, the first is {}", place_, e, layer, DTypeName(type),
                           DTypeName(stored));
      }
      stored = type;
    }
    const DType dtype = stored == DType::kFP8E4M3 ? DType::kF32 : stored;
    Add(GgufName({role, layer}), dtype, stored, {spec_.moe.num_experts, rows, cols}, std::move(composed));
    return Status::Ok();
  }

  Status AddTensors(const HfConfig& config) {
    const int64_t hidden = spec_.hidden_size;
    RETURN_IF_ERROR(Matrix({kEmbedding}, spec_.vocab_size, hidden));
    if (!spec_.tied_embeddings) RETURN_IF_ERROR(Matrix({kHead}, spec_.vocab_size, hidden));
    RETURN_IF_ERROR(Vector({kFinalNorm}, hidden));
    RETURN_IF_ERROR(RopeDivisors(config));
    for (int32_t layer = 0; layer < spec_.num_all_layers(); ++layer) {
      RETURN_IF_ERROR(Vector({kAttentionNorm, layer}, hidden));
      RETURN_IF_ERROR(Vector({kFfnNorm, layer}, hidden));
      RETURN_IF_ERROR(spec_.attention.kind == AttentionKind::kMla ? Mla(layer) : Gqa(layer));
      RETURN_IF_ERROR(spec_.layers[static_cast<size_t>(layer)].moe ? Moe(layer) : Dense(layer));
      if (layer < spec_.num_layers) continue;
      RETURN_IF_ERROR(Vector({kMtpEmbeddingNorm, layer}, hidden));
      RETURN_IF_ERROR(Vector({kMtpHiddenNorm, layer}, hidden));
      RETURN_IF_ERROR(Matrix({kMtpProjection, layer}, hidden, 2 * hidden));
      RETURN_IF_ERROR(Vector({kMtpNorm, layer}, hidden));
      RETURN_IF_ERROR(IfPresent({kMtpEmbedding, layer}, spec_.vocab_size, hidden));
      RETURN_IF_ERROR(IfPresent({kMtpHead, layer}, spec_.vocab_size, hidden));
    }
    return Status::Ok();
  }

  // Llama-3's scaling: unscaled frequencies over scaled ones.
  Status RopeDivisors(const HfConfig& config) {
    if (!config.Has("rope_scaling")) return Status::Ok();
    ASSIGN_OR_RETURN(const HfConfig scaling, config.Object("rope_scaling"));
    ASSIGN_OR_RETURN(const std::string type, scaling.StringOr("rope_type", "default"));
    if (type != "llama3") return Status::Ok();
    const RopeSpec& rope = spec_.attention.rope;
    ASSIGN_OR_RETURN(const double theta, config.FloatOr("rope_theta", 10000.0));
    std::vector<float> divisors;
    for (int32_t i = 0; i < rope.dim / 2; ++i) {
      divisors.push_back(
          static_cast<float>(std::pow(theta, -2.0 * i / rope.dim) / rope.inv_freq[static_cast<size_t>(i)]));
    }
    Add("rope_freqs.weight", DType::kF32, DType::kF32, {rope.dim / 2}, {Layout::kConstants, {}, std::move(divisors)});
    return Status::Ok();
  }

  Status Gqa(int32_t layer) {
    const AttentionSpec& a = spec_.attention;
    const int64_t hidden = spec_.hidden_size, q = int64_t{a.num_q_heads} * a.head_dim,
                  kv = int64_t{a.num_kv_heads} * a.head_dim;
    const Layout layout = ArchitectureOf(spec_).gguf_interleaves_qk ? Layout::kInterleaved : Layout::kRows;
    RETURN_IF_ERROR(Matrix({kQ, layer}, q, hidden, layout));
    RETURN_IF_ERROR(Matrix({kK, layer}, kv, hidden, layout));
    RETURN_IF_ERROR(Matrix({kV, layer}, kv, hidden));
    RETURN_IF_ERROR(Matrix({kO, layer}, hidden, q));
    if (a.qkv_bias) {
      RETURN_IF_ERROR(Vector({kQBias, layer}, q));
      RETURN_IF_ERROR(Vector({kKBias, layer}, kv));
      RETURN_IF_ERROR(Vector({kVBias, layer}, kv));
    }
    if (!a.qk_norm) return Status::Ok();
    RETURN_IF_ERROR(Vector({kQNorm, layer}, a.head_dim));
    return Vector({kKNorm, layer}, a.head_dim);
  }

  Status Mla(int32_t layer) {
    const AttentionSpec& a = spec_.attention;
    const int64_t hidden = spec_.hidden_size, heads = a.num_q_heads, latent = a.kv_lora_rank;
    if (a.q_lora_rank > 0) {
      RETURN_IF_ERROR(Matrix({kQA, layer}, a.q_lora_rank, hidden));
      RETURN_IF_ERROR(Vector({kQANorm, layer}, a.q_lora_rank));
      RETURN_IF_ERROR(Matrix({kQB, layer}, heads * a.q_head_dim(), a.q_lora_rank));
    } else {
      RETURN_IF_ERROR(Matrix({kQ, layer}, heads * a.q_head_dim(), hidden));
    }
    RETURN_IF_ERROR(Matrix({kKvA, layer}, latent + a.rope_dim, hidden));
    RETURN_IF_ERROR(Vector({kKvANorm, layer}, latent));
    const int64_t rows = heads * (a.nope_dim + a.v_dim);
    RETURN_IF_ERROR(AddComposed(kKB, {kKvB, layer}, rows, latent, {heads, latent, a.nope_dim}, Layout::kKeyB));
    RETURN_IF_ERROR(AddComposed(kVB, {kKvB, layer}, rows, latent, {heads, a.v_dim, latent}, Layout::kValueB));
    return Matrix({kO, layer}, hidden, heads * a.v_dim);
  }

  Status Dense(int32_t layer) {
    RETURN_IF_ERROR(Matrix({kGate, layer}, spec_.intermediate, spec_.hidden_size));
    RETURN_IF_ERROR(Matrix({kUp, layer}, spec_.intermediate, spec_.hidden_size));
    return Matrix({kDown, layer}, spec_.hidden_size, spec_.intermediate);
  }

  Status Moe(int32_t layer) {
    const MoeSpec& moe = spec_.moe;
    const int64_t hidden = spec_.hidden_size;
    RETURN_IF_ERROR(AddComposed(kRouter, {kRouter, layer}, moe.num_experts, hidden, {moe.num_experts, hidden},
                                Layout::kRows, Keep::kF32));
    if (moe.choice_bias) RETURN_IF_ERROR(Vector({kRouterBias, layer}, moe.num_experts));
    RETURN_IF_ERROR(Experts(kExpertGate, layer, moe.intermediate, hidden));
    RETURN_IF_ERROR(Experts(kExpertUp, layer, moe.intermediate, hidden));
    RETURN_IF_ERROR(Experts(kExpertDown, layer, hidden, moe.intermediate));
    if (moe.shared_intermediate == 0) return Status::Ok();
    RETURN_IF_ERROR(Matrix({kSharedGate, layer}, moe.shared_intermediate, hidden));
    RETURN_IF_ERROR(Matrix({kSharedUp, layer}, moe.shared_intermediate, hidden));
    return Matrix({kSharedDown, layer}, hidden, moe.shared_intermediate);
  }

  ModelSpec spec_;
  std::shared_ptr<const SafetensorsFolder> folder_;
  std::unique_ptr<TensorSource> source_;
  std::vector<Part> parts_;
  std::vector<Composed> composed_;
};

}  // namespace

Result<std::unique_ptr<QuantizeSource>> OpenHfQuantizeSource(const std::string& folder) {
  auto source = std::make_unique<HfQuantizeSource>();
  RETURN_IF_ERROR(source->Open(folder));
  return std::unique_ptr<QuantizeSource>(std::move(source));
}

}  // namespace cachalot
