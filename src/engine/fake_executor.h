// FakeExecutor: a StepExecutor over FakeDevice, for tests. Fails a launch where "device.op" is armed and a
// collection where "device.collect" is.
#pragma once

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
                 .kv_groups = info.kv_groups}) {}

  const ExecutorInfo& info() const override { return info_; }
  const FakeModel& model() const { return device_.model(); }

  Status Launch(const StepPlan& plan) override {
    if (FaultHits("device.op")) return DeviceError("step {}: injected fault", plan.step_id);
    return device_.Run(plan, &result_);
  }
  Status Collect(StepResult* result) override {
    if (FaultHits("device.collect")) return DeviceError("injected fault while collecting");
    std::swap(*result, result_);
    return Status::Ok();
  }

 private:
  ExecutorInfo info_;
  FakeDevice device_;
  StepResult result_;
};

}  // namespace cachalot
