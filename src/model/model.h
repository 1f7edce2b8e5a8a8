// Model: weights and the forward pass over one ragged batch of tokens. It knows shapes and pages, no requests.
#pragma once

#include <cstdint>
#include <functional>
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
  // The MTP layer only drafts, which decides no token: of its head and its projection, most of what a draft reads, there are
  // copies in four bits a weight.
  bool rough_drafts = false;
  int32_t draft_head_tokens = 0;  // MTP: it drafts only tokens below this; 0: any
  // The last layers that live on the GPU, with the norm and the head behind them; all of them: the embedding too.
  int32_t num_cuda_layers = 0;
  bool cuda_exact = false;            // weights that are derived at load time keep F32 there
  KvTypes kv_types = {};
  // For quantised layers, by layer (all or none; empty: no mean): [num_kv_heads, coded values of a key].
  std::vector<std::vector<float>> key_means = {};
  CudaUploader* uploader = nullptr;   // where GPU weights go; its arena must outlive the model
};

struct WeightBytes {
  int64_t owned = 0;
  int64_t borrowed = 0;
  int64_t cuda = 0;  // device memory
};

// [num_tokens, rope_dim / 2] each, of a batch's positions.
struct RopeTables {
  float* cos = nullptr;
  float* sin = nullptr;
};

struct ForwardBatch {
  const int32_t* token_ids = nullptr;  // [num_tokens]
  const int32_t* positions = nullptr;  // [num_tokens]
  int64_t num_tokens = 0;
  std::span<const SeqSpan> spans = {}; // cover the tokens in order; on the GPU they are read from ExecContext::cuda
  size_t num_expanded = 0;             // of them, the last ones: in MLA's expanded form (MlaExpands)
  std::span<const KvBinding> kv = {};  // by group, as kv_groups() orders them
  // The layers [first_layer, end_layer), all of one home; the first one begins with the embedding, later ones with hidden.
  int32_t first_layer = 0;
  int32_t end_layer = INT32_MAX;       // clipped to the model's
  float* hidden = nullptr;             // in/out [num_tokens, hidden_size]: the residual stream before the final norm
  // The rows of `hidden` that will be read when the last layer is done; null: all. On the CPU the others stay as that
  // layer's attention left them: of a prompt's tokens mostly the last one alone is asked for.
  const int32_t* wanted_rows = nullptr;
  int64_t num_wanted_rows = 0;
  int32_t* expert_counts = nullptr;    // out, += [MoE layers, num_experts] of the rows computed; or null
  RopeTables rope = {};                // of the positions, where it was made before
  int64_t mla_piece_tokens = 0;        // on the GPU: cached tokens that MLA's expanded form multiplies at a time; 0: it chooses
  std::function<void(int32_t layer)> before_layer = {};  // or null: called in front of each one's ops
};

// MTP slots: row i combines the main model's hidden state at a position with the embedding of the token after it.
struct MtpBatch {
  const int32_t* next_token_ids = nullptr;  // [num_tokens]
  const int32_t* positions = nullptr;       // [num_tokens]
  // [num_tokens, hidden_size], and where it comes from: after the final norm or the layer's own, or raw, so that one of them is still to come.
  const float* hidden = nullptr;
  enum class From { kNormed, kModel, kMtp };
  From from = From::kNormed;
  const int32_t* hidden_rows = nullptr;     // of raw ones, on the GPU: token t's is row hidden_rows[t], -1: anything
  int64_t num_tokens = 0;
  std::span<const SeqSpan> spans = {};
  size_t num_expanded = 0;
  KvBinding kv = {};                        // the MTP group
  float* out = nullptr;                     // [num_tokens, hidden_size], after the MTP layer's own norm, or (raw) in front of it
  bool raw_out = false;
  // On the CPU: the rows of `out` that will be read, of most sequences the last alone; null: all.
  const int32_t* wanted_rows = nullptr;
  int64_t num_wanted_rows = 0;
  RopeTables rope = {};                     // as in ForwardBatch
};

class Model {
 public:
  // Checks that every tensor is there with the right shape and type, and counts bytes; reads no weights. The model that
  // comes back can only be asked for its sizes (and go through a step that runs nothing, to find out its scratch).
  static Result<std::unique_ptr<Model>> Plan(ModelSpec spec, const TensorSource& source, const ModelBuildOptions& options);
  static Result<std::unique_ptr<Model>> Load(ModelSpec spec, const TensorSource& source, const ModelBuildOptions& options);

  const ModelSpec& spec() const { return spec_; }
  bool has_mtp() const { return mtp_.has_value(); }
  int32_t mtp_head_tokens() const { return mtp_->head_tokens; }
  const std::vector<KvGroupSpec>& kv_groups() const { return kv_groups_; }
  const WeightBytes& weight_bytes() const { return weight_bytes_; }
  int32_t num_cuda_layers() const { return num_cuda_layers_; }
  // Weights that every forward reads once (the embedding's rows and MTP left out), and of one expert of a MoE layer.
  int64_t dense_bytes() const;
  int64_t expert_bytes(int32_t moe_idx) const;

  // As ModelBuildOptions has them, instead of what the model was built with. Not on the GPU.
  void SetKvTypes(const KvTypes& types, const std::vector<std::vector<float>>& key_means);

  void Forward(const ExecContext& exec, const ForwardBatch& batch) const;
  void MakeRopeTables(const ExecContext& exec, const int32_t* positions, int64_t num_tokens, const RopeTables& tables) const;
  // y = RMSNorm(x) with the final norm's weight; x, y [num_rows, hidden_size], may be the same.
  // x_rows: on the GPU, or null: row i of y is that of row x_rows[i]; -1: it stays as it was.
  void FinalNorm(const ExecContext& exec, const float* x, int64_t num_rows, float* y, const int32_t* x_rows = nullptr) const;
  // logits [num_rows, vocab_size] of normalised hidden states.
  void Head(const ExecContext& exec, const float* x, int64_t num_rows, float* logits) const;
  void ForwardMtp(const ExecContext& exec, const MtpBatch& batch) const;
  // Its two parts: up to attention, which leaves the residual stream in `out` and all that later rows need in the KV cache;
  // and what is behind it, in place, for such rows of it as are wanted.
  void ForwardMtpAttention(const ExecContext& exec, const MtpBatch& batch) const;
  void ForwardMtpFfn(const ExecContext& exec, float* rows, int64_t num_rows, bool raw_out = false) const;
  // The MTP layer's head (its own, or the main one): the first mtp_head_tokens() of each row.
  // Where `normed` (room for as many rows) is given, x is raw: the layer's own norm is still to come.
  void MtpHead(const ExecContext& exec, const float* x, int64_t num_rows, float* logits, float* normed = nullptr) const;

  // Scratch of Forward (and ForwardMtp) with up to max_tokens tokens, and of Head with up to max_logit_rows.
  static int64_t WorkspaceBytes(const ModelSpec& spec, int64_t max_tokens, int32_t max_context, int64_t max_logit_rows,
                                int num_threads);

 private:
  struct Layer {
    FloatArray attention_norm;  // [hidden_size]
    FloatArray ffn_norm;        // [hidden_size]
    std::variant<GqaLayer, MlaLayer> attention;
    std::variant<FfnLayer, MoeLayer> ffn;
    size_t kv_group = 0;
    size_t kv_idx = 0;      // place within the group, and within that of its sinks
    FloatArray key_mean;    // empty: none
    int32_t moe_idx = -1;   // among the MoE layers
  };
  struct Mtp {
    FloatArray embedding_norm;
    FloatArray hidden_norm;
    PackedMatrix projection;            // [hidden, 2 * hidden]: of [embedding ; hidden]
    Layer layer;
    FloatArray norm;
    std::optional<PackedMatrix> embedding;
    std::optional<PackedMatrix> head;
    int32_t head_tokens = 0;
  };

  static Result<std::unique_ptr<Model>> Make(ModelSpec spec, const TensorSource& source, const ModelBuildOptions& options,
                                             WeightReader::Mode mode);
  Status Build(WeightReader* reader, const ModelBuildOptions& options);
  void FindKv(int32_t idx, const std::vector<std::vector<float>>& key_means, Layer* layer) const;
  PagedKv Bind(const Layer& layer, size_t kv_group, const KvBinding& binding) const;
  // sinks: the place that the view's `sinks` points to.
  PagedKv BindWithSinks(const Layer& layer, std::span<const KvBinding> bindings, PagedKv* sinks) const;
  Status BuildMtp(WeightReader* reader, const ModelBuildOptions& options);
  Result<Layer> BuildLayer(WeightReader* reader, int32_t layer) const;
  DeviceType Home(int32_t layer) const {
    return layer >= spec_.num_layers - num_cuda_layers_ ? DeviceType::kCuda : DeviceType::kCpu;
  }
  // `given`, or made in the workspace.
  RopeTables RopeOf(const ExecContext& exec, const int32_t* positions, int64_t num_tokens, const RopeTables& given) const;
  void RunAttention(const ForwardContext& fwd, const Layer& layer, int32_t window, const PagedKv& kv, float* hidden,
                    float* normed) const;
  void RunFfn(const ExecContext& exec, const Layer& layer, int64_t num_tokens, float* hidden, float* normed,
              int32_t* expert_counts) const;
  void RunWantedFfn(const ExecContext& exec, const Layer& layer, const ForwardBatch& batch, float* normed,
                    int32_t* expert_counts) const;
  const PackedMatrix& HeadMatrix() const { return head_ ? *head_ : embedding_; }

  ModelSpec spec_;
  int32_t num_cuda_layers_ = 0;
  WeightBytes weight_bytes_;
  std::vector<KvGroupSpec> kv_groups_;
  FloatArray cpu_inv_freq_;            // [rope dim / 2], for the layers on the CPU
  FloatArray cuda_inv_freq_;           // and on the GPU
  PackedMatrix embedding_;             // [vocab, hidden]
  std::optional<PackedMatrix> head_;   // absent: tied
  FloatArray final_norm_;
  std::vector<Layer> layers_;
  std::optional<Mtp> mtp_;
};

}  // namespace cachalot
