// Runtime: turns step plans into work on the CPU: block tables, forward, sampling. Depth 0: Launch computes, Collect
// hands the result over. A step in steady state allocates nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/exec_context.h"
#include "model/model.h"
#include "runtime/drafter.h"
#include "runtime/executor.h"
#include "runtime/kv_store.h"
#include "runtime/slot_state.h"

namespace cachalot {

struct RuntimeOptions {
  Isa isa = Isa::kRef;
  int32_t num_threads = 1;
  bool deterministic = false;
  int32_t max_seqs = 1;
  int32_t max_step_tokens = 512;
  int32_t max_context = 4096;
  int32_t max_logit_rows = 1;
  DType kv_dtype = DType::kF16;  // of the layers that kv_types leaves plain
  KvTypes kv_types = {};         // as ModelBuildOptions has them
  int32_t block_tokens = 16;
  int64_t kv_tokens = 0;        // 0: max_seqs * max_context
  int64_t swap_tokens = 0;      // of preempted sequences (PreemptionMode::kSwap)
  MlaForm mla_form = MlaForm::kByCost;
  int64_t mla_piece_tokens = 0;  // as ForwardBatch has it; tests
  int64_t kv_slice_bytes = 0;    // of blocks on their way to the GPU, at least (CudaTransfers); 0: as usual; tests
  DraftKind drafts = DraftKind::kNone;  // kMtp: the model was loaded with its MTP layer; kModel: see Create
  int32_t max_drafts = 0;       // of a row
  // Benchmarks only: each draft is accepted with this probability, right or wrong, so what is generated means nothing. < 0:
  // off.
  float accept_fixed = -1.0f;
  std::string kv_identity = {};  // as ExecutorInfo's
};

inline constexpr uint64_t kAcceptSeed = 77;  // of a synthetic acceptance

// The groups that sequences have blocks in: not that of an MTP layer that drafts, which has memory of its own.
std::vector<KvGroupSpec> SequenceGroups(std::vector<KvGroupSpec> groups, const RuntimeOptions& options);

class Runtime final : public StepExecutor {
 public:
  // draft_model: of DraftKind::kModel.
  static Result<std::unique_ptr<Runtime>> Create(std::unique_ptr<Model> model, std::unique_ptr<ThreadPool> pool,
                                                 const RuntimeOptions& options, std::unique_ptr<Model> draft_model = nullptr);

  // What Create was given, back; without the draft model.
  struct Parts {
    std::unique_ptr<Model> model;
    std::unique_ptr<ThreadPool> pool;
  };
  static Parts TakeApart(std::unique_ptr<Runtime> runtime) { return {std::move(runtime->model_), std::move(runtime->pool_)}; }

  struct Memory {
    int64_t kv_bytes = 0;
    int64_t workspace_bytes = 0;  // scratch, activations, logits, slot state
  };
  static Memory PlanMemory(const ModelSpec& spec, bool with_mtp, const RuntimeOptions& options,
                           const ModelSpec* draft_spec = nullptr);

  const ExecutorInfo& info() const override { return info_; }
  Status Launch(const StepPlan& plan) override;
  Status Collect(StepResult* result) override;
  bool can_move_blocks() const override { return true; }
  Status ReadBlock(int32_t group, int32_t block, std::span<std::byte> out) override;
  Status WriteBlock(int32_t group, int32_t block, std::span<const std::byte> bytes) override;

  const Model& model() const { return *model_; }
  const RuntimeOptions& options() const { return options_; }
  const ExecCounters& counters() const { return counters_; }
  int64_t moved_bytes() const override { return counters_.weight_bytes.load() + counters_.kv_bytes.load(); }
  ThreadPool& pool() { return *pool_; }

 private:
  Runtime() = default;
  void Gather(const StepPlan& plan);
  void GatherHiddenRows(const StepPlan& plan);
  // Logits of all wanted positions of the step, tile by tile, so that the head is read once for all sequences.
  void Output(const StepPlan& plan);
  void MakeDrafts(const StepPlan& plan);
  void TellDrafter(const StepPlan& plan);
  void SamplePosition(const PlanRow& row, ResultRow* out, int64_t token_begin, int32_t position, float* logits);
  void OutputPosition(const PlanRow& row, ResultRow* out, int64_t token_begin, int32_t position, float* logits);
  void OutputHidden(const PlanRow& row, ResultRow* out, int64_t token_begin);
  void OutputMtp(const StepPlan& plan);

  RuntimeOptions options_;
  ExecutorInfo info_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ThreadPool> pool_;
  Workspace workspace_;
  ExecCounters counters_;
  ExecContext exec_;
  KvStore kv_;
  std::vector<SlotState> slots_;
  // The batch, [max_step_tokens].
  std::vector<int32_t> token_ids_;
  std::vector<int32_t> positions_;
  MlaForm mla_form_ = MlaForm::kByCost;
  std::vector<SeqSpan> spans_;           // [max_seqs]
  size_t num_expanded_ = 0;              // the last of them, in MLA's expanded form
  std::vector<int32_t> row_begin_;       // [plan rows] where each row's tokens are in the batch
  std::vector<int32_t> row_order_;       // [spans] the plan's row behind each
  std::vector<TokenLogprob> top_;
  // A position of the step whose logits are wanted.
  struct Wanted {
    int32_t row_idx = 0;
    int32_t position = 0;  // within the row
  };
  std::vector<Wanted> wanted_;           // [max_step_tokens]
  std::vector<int32_t> hidden_rows_;     // [max_step_tokens]
  int64_t logit_tile_ = 0;               // positions whose logits are in memory at once
  Buffer hidden_;                        // [max_step_tokens, hidden_size]
  Buffer normed_;                        // [logit_tile, hidden_size]
  Buffer logits_;                        // [logit_tile, vocab_size]
  // MTP: the normalised hidden state of each slot's last position, and the batch of MTP slots.
  Buffer last_hidden_;                   // [max_seqs, hidden_size]
  Buffer mtp_hidden_;                    // [max_step_tokens, hidden_size]
  Buffer mtp_out_;                       // [max_step_tokens, hidden_size]
  // Drafting.
  std::unique_ptr<Drafter> drafter_;     // null: drafts come with the plan, or not at all
  std::vector<Drafter::Want> wants_;     // [max_seqs]
  std::vector<int32_t> drafts_;          // [max_seqs, kMaxDrafts] by slot
  std::vector<int32_t> next_tokens_;     // [max_step_tokens]
  StepResult result_;
  bool pending_ = false;
};

}  // namespace cachalot
