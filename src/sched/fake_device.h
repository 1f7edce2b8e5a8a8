// FakeDevice: carries out step plans for a FakeModel, for tests. It knows a sequence only through the plan's
// rows, tokens, setups and block tables, and keeps the KV contents by block id, so that a wrong plan gives
// wrong tokens. It also checks the plan: limits, ranges, table entries, and that nobody overwrote a block
// that a row reads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "sched/fake_model.h"
#include "sched/plan.h"
#include "sched/scheduler_options.h"

namespace cachalot {

class FakeDevice {
 public:
  explicit FakeDevice(SchedulerLimits limits);

  const FakeModel& model() const { return model_; }
  // kInternal: the plan is wrong, the message says how.
  Status Run(const StepPlan& plan, StepResult* result);
  // The host knows the results of all steps up to this one: what those touched may be given to others.
  void Completed(uint64_t step_id) { completed_step_ = step_id; }
  // As after a reset of the device: no slot and no block holds anything.
  void Forget();
  // A block's contents as bytes: kCellBytes for each token.
  static constexpr int64_t kCellBytes = 24;
  void SaveBlock(int32_t group, int32_t block, std::span<std::byte> out) const;
  Status LoadBlock(int32_t group, int32_t block, std::span<const std::byte> bytes);

  int64_t num_steps() const { return num_steps_; }
  int64_t num_rows() const { return num_rows_; }

 private:
  struct Cell {
    uint64_t value = 0;
    uint64_t chain = 0;  // of the tokens up to this one in the sequence that wrote it
    int32_t position = -1;
    uint64_t last_step = 0;  // the newest that touched it,
    uint64_t last_user = 0;  // and the residency that did
  };
  struct Slot {
    uint64_t residency = 0;  // a new number for each SlotSetup; 0: never set up
    int32_t num_computed = 0;
    int32_t num_wrong = 0;         // drafts of its last row
    int32_t last_token = -1;
    std::vector<int32_t> context;  // what it was told of the tokens in front of its first row
    std::vector<int32_t> drafts;   // that it makes itself, of the step being run
    bool stopped = false;  // last_token is a stop id: rows are skipped until the next setup
    std::vector<int32_t> stop_ids;
    int32_t mtp_computed = 0;  // num_computed and hidden state at the end of the last row with kOutputMtp
    uint64_t mtp_hidden = 0;
    SamplingConfig sampling;
    FakeHistory history;
    std::vector<uint64_t>
        chains;  // [max_context] of its tokens: what the cells of every group must agree with
    std::vector<std::vector<int32_t>> tables;  // [groups][index]
  };

  Status CheckRow(const StepPlan& plan, const PlanRow& row);
  Status SetUp(const StepPlan& plan, const SlotSetup& setup);
  Status RunRow(const StepPlan& plan, const PlanRow& row, StepResult* result);
  // From the first position that samples to the one whose draft is wrong, or the last. It returns that one.
  int32_t Sample(const PlanRow& row, Slot* slot, ResultRow* out, StepResult* result);
  void AddLogprobs(const PlanRow& row, uint64_t hidden, int32_t token, AcceptedToken* out, StepResult* result) const;
  int32_t TokenOf(const StepPlan& plan, const PlanRow& row, const Slot& slot, int32_t i) const;
  // A guess at what `position` samples, wrong in one case of three.
  Result<int32_t> Draft(const Slot& slot, int32_t position);
  // The cells of a whole block: what moves and copies handle.
  Status MoveBlock(const std::vector<Cell>& from, int32_t from_block, std::vector<Cell>* to, int32_t to_block,
                   int32_t block_tokens);
  // The cell of a position, or null if the table has no block there.
  Cell* Find(const Slot& slot, size_t group, int32_t position);
  // In the group without a window that keeps the position.
  Cell* FindWhole(const Slot& slot, int32_t position);
  Result<uint64_t> Hidden(const Slot& slot, int32_t position);
  // A sequence enters with tokens that others computed.
  Status TakePrefix(Slot* slot, int32_t num_tokens);

  SchedulerLimits limits_;
  FakeModel model_;
  std::vector<Slot> slots_;
  std::vector<std::vector<Cell>> cells_;       // [groups][block * block_tokens + place]
  std::vector<std::vector<Cell>> host_cells_;  // the same of the swap pools
  std::vector<PlanRow> rows_;                  // the plan's, where they really stand
  std::vector<int32_t> tokens_;                // of the row being computed
  std::vector<uint64_t> hidden_;
  std::vector<std::array<int32_t, 3>> written_;  // slot, group, index
  uint64_t num_residencies_ = 0;
  uint64_t step_id_ = 0;
  uint64_t completed_step_ = 0;
  int64_t num_steps_ = 0;
  int64_t num_rows_ = 0;
};

}  // namespace cachalot
