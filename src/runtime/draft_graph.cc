#include "runtime/draft_graph.h"

namespace cachalot {
namespace {

class MtpGraph final : public DraftGraph {
 public:
  explicit MtpGraph(const Model* model) : model_(model) { CHECK(model->has_mtp()); }
  bool takes_hidden() const override { return true; }
  const ModelSpec& spec() const override { return model_->spec(); }
  int32_t head_tokens() const override { return model_->mtp_head_tokens(); }
  std::vector<KvGroupSpec> kv_groups() const override { return {model_->kv_groups().back()}; }
  void Norm(const ExecContext& exec, float* hidden, int64_t num_rows) const override {
    model_->FinalNorm(exec, hidden, num_rows, hidden);
  }
  void Forward(const ExecContext& exec, const DraftBatch& batch) const override {
    model_->ForwardMtp(exec, {.next_token_ids = batch.token_ids,
                              .positions = batch.positions,
                              .hidden = batch.hidden,
                              .num_tokens = batch.num_tokens,
                              .spans = batch.spans,
                              .kv = batch.kv[0],
                              .out = batch.out,
                              .wanted_rows = batch.wanted_rows,
                              .num_wanted_rows = batch.num_wanted_rows});
  }
  void Head(const ExecContext& exec, float* x, int64_t num_rows, float* logits) const override {
    model_->MtpHead(exec, x, num_rows, logits);
  }

 private:
  const Model* const model_;
};

class ModelGraph final : public DraftGraph {
 public:
  explicit ModelGraph(std::unique_ptr<Model> model) : model_(std::move(model)) {}
  bool takes_hidden() const override { return false; }
  const ModelSpec& spec() const override { return model_->spec(); }
  int32_t head_tokens() const override { return model_->spec().vocab_size; }
  std::vector<KvGroupSpec> kv_groups() const override { return model_->kv_groups(); }
  void Norm(const ExecContext&, float*, int64_t) const override {}  // it takes none
  void Forward(const ExecContext& exec, const DraftBatch& batch) const override {
    model_->Forward(exec, {.token_ids = batch.token_ids,
                           .positions = batch.positions,
                           .num_tokens = batch.num_tokens,
                           .spans = batch.spans,
                           .kv = batch.kv,
                           .hidden = batch.out,
                           .wanted_rows = batch.wanted_rows,
                           .num_wanted_rows = batch.num_wanted_rows});
  }
  void Head(const ExecContext& exec, float* x, int64_t num_rows, float* logits) const override {
    model_->FinalNorm(exec, x, num_rows, x);
    model_->Head(exec, x, num_rows, logits);
  }

 private:
  const std::unique_ptr<Model> model_;
};

}  // namespace

std::unique_ptr<DraftGraph> MakeMtpGraph(const Model* model) { return std::make_unique<MtpGraph>(model); }

std::unique_ptr<DraftGraph> MakeModelGraph(std::unique_ptr<Model> model) {
  return std::make_unique<ModelGraph>(std::move(model));
}

}  // namespace cachalot
