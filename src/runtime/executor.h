// StepExecutor: what the engine asks of a runtime. One implementation runs models; tests put a fake in its place.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kv/plan.h"
#include "sched/plan.h"

namespace cachalot {

struct ExecutorInfo {
  int32_t max_seqs = 0;            // slots
  int32_t max_step_tokens = 0;     // tokens in one step, over all rows
  int32_t max_context = 0;         // tokens of one sequence
  int32_t vocab_size = 0;
  int32_t num_experts = 0;         // routed experts of a MoE layer; 0: a dense model
  int32_t max_logit_rows = 0;      // positions of one step that may ask for all logits or MTP logits
  std::vector<KvGroupInfo> kv_groups;
};

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  virtual const ExecutorInfo& info() const = 0;
  // Starts the step. The plan must keep to info()'s limits (programmer error otherwise); an error means that the step
  // did not happen and names why.
  virtual Status Launch(const StepPlan& plan) = 0;
  // Waits for the oldest launched step. At depth 0 it is called right after Launch.
  virtual Status Collect(StepResult* result) = 0;
};

}  // namespace cachalot
