// Model: weights and the forward pass over one ragged batch of tokens. It knows shapes and pages, no requests.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "kernels/embed/embed.h"
#include "model/forward_context.h"
#include "model/kv_layout.h"
#include "model/layers/ffn.h"
#include "model/layers/gqa.h"
#include "model/layers/mla.h"
#include "model/layers/moe.h"
#include "model/model_spec.h"
#include "weights/tensor_source.h"

namespace cachalot {

struct ModelBuildOptions {
  SourceNaming naming = SourceNaming::kHuggingFace;
  PackOptions pack;
  bool load_mtp = false;
};

struct WeightBytes {
  int64_t owned = 0;
  int64_t borrowed = 0;
};

struct ForwardBatch {
  const int32_t* token_ids = nullptr;  // [num_tokens]
  const int32_t* positions = nullptr;  // [num_tokens]
  int64_t num_tokens = 0;
  std::span<const SeqSpan> spans;      // cover the tokens in order
  std::span<const KvBinding> kv;       // by group, as KvGroups() orders them
  float* hidden = nullptr;             // out [num_tokens, hidden_size]: the residual stream before the final norm
  int32_t* expert_counts = nullptr;    // out, += [MoE layers, num_experts]; or null
  MlaForm mla_form = MlaForm::kByCost;
};

// MTP slots: row i combines the main model's hidden state at a position with the embedding of the token after it.
struct MtpBatch {
  const int32_t* next_token_ids = nullptr;  // [num_tokens]
  const int32_t* positions = nullptr;       // [num_tokens]
  const float* hidden = nullptr;            // [num_tokens, hidden_size], after the final norm
  int64_t num_tokens = 0;
  std::span<const SeqSpan> spans;
  KvBinding kv;                             // the MTP group
  float* out = nullptr;                     // [num_tokens, hidden_size], after the MTP layer's own norm
  MlaForm mla_form = MlaForm::kByCost;
};

class Model {
 public:
  // Checks that every tensor is there with the right shape and type, and counts bytes; reads no weights.
  static Result<WeightBytes> Plan(const ModelSpec& spec, const TensorSource& source, const ModelBuildOptions& options);
  static Result<std::unique_ptr<Model>> Load(ModelSpec spec, const TensorSource& source, const ModelBuildOptions& options);

  const ModelSpec& spec() const { return spec_; }
  bool has_mtp() const { return mtp_.has_value(); }
  const std::vector<KvGroupSpec>& kv_groups() const { return kv_groups_; }

  void Forward(const ExecContext& exec, const ForwardBatch& batch) const;
  // y = RMSNorm(x) with the final norm's weight; x, y [num_rows, hidden_size], may be the same.
  void FinalNorm(const ExecContext& exec, const float* x, int64_t num_rows, float* y) const;
  // logits [num_rows, vocab_size] of normalised hidden states.
  void Head(const ExecContext& exec, const float* x, int64_t num_rows, float* logits) const;
  void ForwardMtp(const ExecContext& exec, const MtpBatch& batch) const;
  // The MTP layer's head (its own, or the main one).
  void MtpHead(const ExecContext& exec, const float* x, int64_t num_rows, float* logits) const;

  // Scratch of Forward (and ForwardMtp) with up to max_tokens tokens, and of Head with up to max_logit_rows.
  static int64_t WorkspaceBytes(const ModelSpec& spec, int64_t max_tokens, int32_t max_context, int64_t max_logit_rows,
                                int num_threads);

 private:
  struct Layer {
    std::vector<float> attention_norm;  // [hidden_size]
    std::vector<float> ffn_norm;        // [hidden_size]
    std::variant<GqaLayer, MlaLayer> attention;
    std::variant<FfnLayer, MoeLayer> ffn;
    size_t kv_group = 0;
    size_t kv_idx = 0;      // place within the group
    int32_t moe_idx = -1;   // among the MoE layers
  };
  struct Mtp {
    std::vector<float> embedding_norm;
    std::vector<float> hidden_norm;
    PackedMatrix projection;            // [hidden, 2 * hidden]: of [embedding ; hidden]
    Layer layer;
    std::vector<float> norm;
    std::optional<PackedMatrix> embedding;
    std::optional<PackedMatrix> head;
  };

  Status Build(WeightReader* reader, bool load_mtp);
  Result<Layer> BuildLayer(WeightReader* reader, int32_t layer) const;
  void RunLayer(const ForwardContext& fwd, const Layer& layer, int32_t window, const PagedKv& kv, MlaForm form,
                float* hidden, float* normed, int32_t* expert_counts) const;
  void Rope(const ExecContext& exec, const int32_t* positions, int64_t num_tokens, float* cos, float* sin) const;
  const PackedMatrix& HeadMatrix() const { return head_ ? *head_ : embedding_; }

  ModelSpec spec_;
  std::vector<KvGroupSpec> kv_groups_;
  PackedMatrix embedding_;             // [vocab, hidden]
  std::optional<PackedMatrix> head_;   // absent: tied
  std::vector<float> final_norm_;
  std::vector<Layer> layers_;
  std::optional<Mtp> mtp_;
};

}  // namespace cachalot
