// FakeExecutor: a StepExecutor over FakeDevice, for tests. Fails a launch where "device.op" is armed, a
// collection where "device.collect" is, a transfer where "device.copy" is and a recovery where "device.recover" is; after an
// error it insists on Recover. Where KV blocks are on the device, transfers happen late: as a step that waits for them is
// launched, or one each time somebody asks; of groups on the host at once. A block may be larger than what the fake model keeps in it.
#pragma once

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/fault.h"
#include "runtime/executor.h"
#include "sched/fake_device.h"

namespace cachalot {

class FakeExecutor final : public StepExecutor {
 public:
  explicit FakeExecutor(const ExecutorInfo& info)
      : info_(info),
        device_({.max_seqs = info.max_seqs,
                 .max_step_tokens = info.max_step_tokens,
                 .max_context = info.max_context,
                 .vocab_size = info.vocab_size,
                 .max_logit_rows = info.max_logit_rows,
                 .kv_groups = info.kv_groups,
                 .draft_context = info.draft_context}) {
    results_.resize(static_cast<size_t>(info.depth) + 1);
  }

  const ExecutorInfo& info() const override { return info_; }
  const FakeModel& model() const { return device_.model(); }
  int num_in_flight() const { return num_in_flight_; }

  Status Launch(const StepPlan& plan) override {
    CHECK(!failed_) << "a launch before Recover";
    CHECK(num_in_flight_ <= info_.depth) << num_in_flight_ << " steps in flight";
    if (FaultHits("device.op")) return Failed(DeviceError("step {}: injected fault", plan.step_id));
    while (!transfers_.empty()) {
      if (Status status = NextTransfer(); !status.ok()) return Failed(status);
    }
    const Status status = device_.Run(plan, &results_[static_cast<size_t>(num_in_flight_)]);
    if (!status.ok()) return Failed(status);
    results_[static_cast<size_t>(num_in_flight_)].device_us = step_us_;
    ++num_in_flight_;
    return Status::Ok();
  }
  Status Collect(StepResult* result) override {
    CHECK(!failed_) << "a collection before Recover";
    CHECK(num_in_flight_ > 0) << "nothing to collect";
    if (FaultHits("device.collect")) return Failed(DeviceError("injected fault while collecting"));
    std::swap(*result, results_[0]);
    if (--num_in_flight_ > 0) std::swap(results_[0], results_[1]);
    device_.Completed(result->step_id);
    return Status::Ok();
  }
  Status Recover() override {
    CHECK(failed_) << "Recover without an error";
    if (FaultHits("device.recover")) return DeviceError("injected fault while recovering");
    failed_ = false;
    num_in_flight_ = 0;
    transfers_.clear();
    device_.Forget();
    return Status::Ok();
  }
  bool can_move_blocks() const override { return true; }
  Status ReadBlock(int32_t group, int32_t block, std::span<std::byte> out) override {
    device_.SaveBlock(group, block, out.first(UsedBytes(group)));
    return Status::Ok();
  }
  Status WriteBlock(int32_t group, int32_t block, std::span<const std::byte> bytes) override {
    return device_.LoadBlock(group, block, bytes.first(UsedBytes(group)));
  }
  Status StartTransfers(std::span<const BlockTransfer> transfers) override {
    CHECK(!failed_) << "a transfer before Recover";
    if (FaultHits("device.copy")) return Failed(DeviceError("injected fault of a transfer"));
    if (!info_.kv_on_device) return StepExecutor::StartTransfers(transfers);
    int64_t host_bytes[2] = {0, 0};
    for (const BlockTransfer& transfer : transfers) {
      const KvGroupInfo& group = info_.kv_groups[static_cast<size_t>(transfer.group)];
      if (group.on_device) {
        transfers_.push_back(transfer);
        continue;
      }
      transfers_.push_back(transfer);
      transfers_.back().host = nullptr;  // it is done
      RETURN_IF_ERROR(Transfer(transfer));
      host_bytes[transfer.into_block ? 1 : 0] += group.block_bytes;
    }
    for (const int64_t bytes : host_bytes) max_host_bytes_ = std::max(max_host_bytes_, bytes);
    num_transfers_ += static_cast<int64_t>(transfers.size());
    return Status::Ok();
  }
  int64_t num_transfers() const { return num_transfers_; }
  // That the host itself copied one way in one call, at most.
  int64_t max_host_bytes() const { return max_host_bytes_; }
  Result<int64_t> TransfersDone() override {
    if (!transfers_.empty()) RETURN_IF_ERROR(NextTransfer());
    return num_transfers_ - static_cast<int64_t>(transfers_.size());
  }
  double transfer_bytes_per_second() const override { return transfer_bytes_per_second_; }
  void SetTransferRate(double bytes_per_second) { transfer_bytes_per_second_ = bytes_per_second; }
  void SetStepTime(int64_t us) { step_us_ = us; }

 private:
  size_t UsedBytes(int32_t group) const {
    return static_cast<size_t>(info_.kv_groups[static_cast<size_t>(group)].block_tokens * FakeDevice::kCellBytes);
  }
  Status NextTransfer() {
    const BlockTransfer transfer = transfers_.front();
    transfers_.pop_front();
    return transfer.host == nullptr ? Status::Ok() : Transfer(transfer);
  }
  Status Failed(Status status) {
    failed_ = true;
    return status;
  }

  ExecutorInfo info_;
  FakeDevice device_;
  std::vector<StepResult> results_;  // of the steps in flight, oldest first
  std::deque<BlockTransfer> transfers_;
  double transfer_bytes_per_second_ = 0;
  int64_t max_host_bytes_ = 0;
  int64_t step_us_ = 0;
  int num_in_flight_ = 0;
  bool failed_ = false;
};

}  // namespace cachalot
