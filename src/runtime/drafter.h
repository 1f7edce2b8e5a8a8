// Drafter: a draft graph with its own KV memory, one row of blocks for each slot. It is told which tokens a sequence got
// (and, for MTP, the hidden states in front of them), and drafts the tokens behind them, greedily. Nothing that it holds
// can change what is generated, so it may forget: a sequence that was not drafted for in a while, or that outgrows its
// row, goes on with its last tokens only, at positions counted from there (attention sees differences of positions). So
// where drafts do not pay, next to nothing is computed for them, and trying one costs few tokens; where they do, prompts are
// read in the steps that compute them.
// What was drafted stands behind the sequence's end and is overwritten by what comes: going back costs nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/exec_context.h"
#include "runtime/draft_activity.h"
#include "runtime/draft_graph.h"
#include "runtime/kv_store.h"
#include "spec/plan.h"

namespace cachalot {

struct DrafterOptions {
  DType kv_dtype = DType::kF16;
  int32_t block_tokens = 16;
  int32_t max_seqs = 1;
  int32_t max_context = 0;     // of the sequences
  int64_t kv_tokens = 0;       // over all of them
  int32_t max_batch_tokens = 1;
  int32_t max_drafts = 1;
  int num_threads = 1;
};

class Drafter {
 public:
  static Result<std::unique_ptr<Drafter>> Create(std::unique_ptr<DraftGraph> graph, const DrafterOptions& options);
  // Of KV memory and buffers.
  static int64_t PlanBytes(const ModelSpec& spec, const std::vector<KvGroupSpec>& groups, bool takes_hidden,
                           const DrafterOptions& options);
  // Scratch that the steps need.
  static int64_t WorkspaceBytes(const ModelSpec& spec, const DrafterOptions& options);
  // Tokens in front of a sequence's first row that it wants to know.
  int32_t context_tokens() const { return graph_->takes_hidden() ? 0 : most_fed_; }
  bool takes_hidden() const { return graph_->takes_hidden(); }

  // A sequence enters the slot; `context`: the last of its tokens, in front of those that come.
  void Reset(int32_t slot, std::span<const int32_t> context);
  // Of a row's last so many positions it wants the hidden states.
  int32_t NumRead(int32_t q_len) const;
  // The slot computed positions whose next tokens are these, with `first` in front of them and the hidden state of each
  // position (before the final norm, [tokens, hidden_size]; null where none are taken). prompt: they are the end of a piece of one;
  // gap: there were others in front of them.
  struct Computed {
    int32_t slot = 0;
    int32_t first = 0;
    std::span<const int32_t> next = {};
    const float* hidden = nullptr;
    bool prompt = false;
    bool gap = false;
  };
  void Append(const ExecContext& exec, const Computed& computed);

  struct Want {
    int32_t slot = 0;
    int32_t num_drafts = 0;
    int32_t* out = nullptr;  // [num_drafts]
  };
  // Every slot had an Append. Ids are below vocab_size.
  void Draft(const ExecContext& exec, std::span<const Want> wants, int32_t vocab_size);
  // A step in which nothing was drafted: after some of them the memory is no longer kept up for all.
  void Idle();

 private:
  struct Slot {
    // With hidden states: the tokens that are not in the KV memory yet. Without: all, of which the first num_fed are in it
    // (or forgotten).
    std::vector<int32_t> tokens;
    int32_t num_fed = 0;
    int32_t length = 0;            // tokens in the KV memory
    bool begun = false;
    std::vector<int32_t> drafted;  // without hidden states: what stands behind them since the last draft
    size_t num_confirmed = 0;      // of those, what really came
  };

  Drafter() = default;
  static int32_t RowTokens(const DrafterOptions& options);
  static KvStoreOptions StoreOptions(const DrafterOptions& options);
  static int64_t BatchTokens(const DrafterOptions& options);
  int32_t NumPending(const Slot& slot) const { return static_cast<int32_t>(slot.tokens.size()) - slot.num_fed; }
  float* PendingHidden(int32_t slot) { return pending_hidden_.as<float>() + int64_t{slot} * kMaxPending * hidden_size_; }
  bool IsActive() const { return activity_.IsActive(); }
  void PushWithHidden(const ExecContext& exec, int32_t slot, int32_t token, const float* hidden);
  void PushToken(Slot* slot, int32_t token);
  void Forget(int32_t slot, int32_t kept);
  void DropPending(int32_t slot, int32_t count);
  void FeedPrompt(const ExecContext& exec, int32_t slot);
  void MakeRoom(Slot* slot, int32_t num_drafts) const;
  void AddPending(const ExecContext& exec, int32_t slot, int32_t count, int32_t want_idx);
  void RunBatch(const ExecContext& exec);
  void FeedPending(const ExecContext& exec, std::span<const Want> wants);
  void Pick(const ExecContext& exec, std::span<const Want> wants, int32_t pass, int32_t vocab_size);

  static constexpr int32_t kMaxPending = 64;     // hidden states kept of a slot
  static constexpr int32_t kCatchUp = 8;         // of them, those that it goes on with after a pause
  static constexpr int32_t kMostFed = 1024;      // tokens that a draft model catches up on,
  static constexpr int32_t kFedToTry = 16;       // and after a pause
  static constexpr int32_t kHeadRows = 64;

  std::unique_ptr<DraftGraph> graph_;
  int32_t hidden_size_ = 0;
  int32_t row_tokens_ = 0;     // of KV memory for each slot
  int32_t most_fed_ = 0;
  int32_t catch_up_ = 0;       // with hidden states: where more tokens wait, it goes on with the last
  int64_t batch_tokens_ = 0;
  DraftActivity activity_;
  bool has_drafted_ = false;
  KvStore kv_;
  std::vector<Slot> slots_;
  Buffer pending_hidden_;      // [max_seqs, kMaxPending, hidden_size]
  // The batch, [batch_tokens].
  std::vector<int32_t> token_ids_, positions_;
  std::vector<SeqSpan> spans_;
  std::vector<int32_t> wanted_rows_;
  std::vector<int32_t> span_wants_;  // by span: whose last state it brings; -1: nobody's
  Buffer hidden_;              // [batch_tokens, hidden_size]
  Buffer out_;                 // [batch_tokens, hidden_size]
  int32_t num_batched_ = 0;
  std::vector<int32_t> active_;      // of the wants, those that get another draft
  Buffer last_;                // [max_seqs, hidden_size] by want: Forward's output for its last token
  Buffer scratch_;             // [kHeadRows, hidden_size]
  Buffer logits_;              // [kHeadRows, vocab_size]
};

}  // namespace cachalot
