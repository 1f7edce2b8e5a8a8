// DraftGraph: a forward pass that guesses the next token. Two of them: the model's own MTP layer, which takes the hidden
// state in front of each token too, and a second model with the same vocabulary, which takes tokens alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/model.h"

namespace cachalot {

struct DraftBatch {
  const int32_t* token_ids = nullptr;  // [num_tokens]
  const int32_t* positions = nullptr;  // [num_tokens]
  const float* hidden = nullptr;       // [num_tokens, hidden_size]; null where the graph takes none
  int64_t num_tokens = 0;
  std::span<const SeqSpan> spans = {};
  std::span<const KvBinding> kv = {};  // by group, as kv_groups() orders them
  float* out = nullptr;                // [num_tokens, hidden_size]: for Head, and as the hidden state of a draft;
  // of it only these rows count.
  const int32_t* wanted_rows = nullptr;
  int64_t num_wanted_rows = 0;
};

class DraftGraph {
 public:
  virtual ~DraftGraph() = default;
  virtual bool takes_hidden() const = 0;
  virtual const ModelSpec& spec() const = 0;
  virtual int32_t head_tokens() const = 0;
  virtual std::vector<KvGroupSpec> kv_groups() const = 0;
  // Hidden states of the model that is drafted for, as Forward takes them; in place.
  virtual void Norm(const ExecContext& exec, float* hidden, int64_t num_rows) const = 0;
  virtual void Forward(const ExecContext& exec, const DraftBatch& batch) const = 0;
  // logits [num_rows, spec().vocab_size] of rows of Forward's `out`, of each the first head_tokens(); x may be changed.
  virtual void Head(const ExecContext& exec, float* x, int64_t num_rows, float* logits) const = 0;
};

// ExecutorInfo::draft_cost of an MTP layer: a layer and the head, which counts as one.
inline double MtpCost(const ModelSpec& spec) { return 2.0 / (spec.num_layers + 1); }

// `model`, which has an MTP layer, must outlive it.
std::unique_ptr<DraftGraph> MakeMtpGraph(const Model* model);
std::unique_ptr<DraftGraph> MakeModelGraph(std::unique_ptr<Model> model);

}  // namespace cachalot
