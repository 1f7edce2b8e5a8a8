// FakeExecutor: a StepExecutor over FakeDevice, for tests. Fails a launch where "device.op" is armed, a
// collection where "device.collect" is and a recovery where "device.recover" is; after an error it insists on
// Recover.
#pragma once

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
    const Status status = device_.Run(plan, &results_[static_cast<size_t>(num_in_flight_)]);
    if (!status.ok()) return Failed(status);
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
    device_.Forget();
    return Status::Ok();
  }
  bool can_move_blocks() const override { return true; }
  Status ReadBlock(int32_t group, int32_t block, std::span<std::byte> out) override {
    device_.SaveBlock(group, block, out);
    return Status::Ok();
  }
  Status WriteBlock(int32_t group, int32_t block, std::span<const std::byte> bytes) override {
    return device_.LoadBlock(group, block, bytes);
  }

 private:
  Status Failed(Status status) {
    failed_ = true;
    return status;
  }

  ExecutorInfo info_;
  FakeDevice device_;
  std::vector<StepResult> results_;  // of the steps in flight, oldest first
  int num_in_flight_ = 0;
  bool failed_ = false;
};

}  // namespace cachalot
