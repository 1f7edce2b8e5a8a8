// CudaStep: what the ops of a step need on the GPU beside ExecContext: the backend, where to run, the batch in device
// memory and the attention schedules. Ops launch and return; the first failure is kept here and ends the step.
#pragma once

#include <type_traits>
#include <vector>

#include "base/check.h"
#include "device/cuda/cuda_library.h"
#include "device/exec_context.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/common/cuda_batch.h"
#include "kernels/common/cuda_half_copies.h"
#include "kernels/matmul/chain_cuda.h"
#include "kernels/mla_expand/mla_expand_cuda.h"

namespace cachalot {

// The rows that attention of one shape works on, and its schedule. The absorbed and the expanded form of MLA have
// different shapes, so the shape alone says which rows are meant.
struct CudaAttentionBatch {
  CudaBatch batch;
  CudaAttentionPlan plan;
};

struct CudaStep {
  const CudaBackend* backend = nullptr;
  CudaExec exec;
  CudaBatch batch;  // all rows of the step
  std::vector<CudaAttentionBatch> attention;
  // Expanded MLA: how the spans were parted, and the bound on the tokens of the expanded ones (0: there is none).
  CudaMlaSplitParams mla_split;
  int64_t num_expanded_tokens = 0;
  // A dry run (backend null) asks here how much scratch each op wants, and keeps the most: what exec.workspace must hold.
  const CudaBackend* planner = nullptr;
  int64_t scratch_bytes = 0;
  CudaHalfCopies halves;
  // Matmuls of one row that wait for those behind them, to be one launch with them; every other op launches them first. Kept back only while
  // somebody will say that there are no more (CudaChaining).
  CudaMatmulChain chain;
  bool chaining = false;
  Status status;              // the first failure

  bool ok() const { return status.ok(); }
  void Check(CudaStatus failure) {
    if (failure != nullptr && status.ok()) status = FromCuda(failure);
  }
  void LaunchChain() {
    if (chain.count > 0 && ok()) Check(backend->matmul_chain(exec, chain));
    chain.count = 0;
  }
  // False: launched as ever.
  bool Chain(const CudaMatmulParams& matmul) {
    if (backend == nullptr || !ok() || matmul.m != 1) return false;
    if (chain.count == kMostChained) LaunchChain();
    chain.ops[chain.count++] = matmul;
    if (!backend->matmul_chains(exec, chain)) {
      --chain.count;
      if (chain.count == 0) return false;
      LaunchChain();
      return Chain(matmul);
    }
    if (!chaining) LaunchChain();
    return true;
  }
  const CudaAttentionBatch* FindAttention(const CudaAttentionShape& shape) const {
    for (const CudaAttentionBatch& entry : attention) {
      if (entry.plan.shape == shape) return &entry;
    }
    return nullptr;
  }
};

inline bool OnCuda(const ExecContext& ctx) { return ctx.device == DeviceType::kCuda; }

// While it lives matmuls may be kept back.
class CudaChaining {
 public:
  explicit CudaChaining(const ExecContext& ctx) : step_(OnCuda(ctx) ? ctx.cuda : nullptr) {
    if (step_ != nullptr) step_->chaining = true;
  }
  ~CudaChaining() {
    if (step_ == nullptr) return;
    step_->chaining = false;
    step_->LaunchChain();
  }
  CudaChaining(const CudaChaining&) = delete;
  CudaChaining& operator=(const CudaChaining&) = delete;

 private:
  CudaStep* step_;
};

// Runs `launch(backend, exec)`, as below. The caller has told step.halves what is written.
template <typename Launch>
  requires std::is_invocable_r_v<CudaStatus, Launch, const CudaBackend&, const CudaExec&>
void RunCudaTold(const ExecContext& ctx, Launch launch) {
  CudaStep& step = *ctx.cuda;
  step.LaunchChain();
  if (step.backend != nullptr && step.ok()) step.Check(launch(*step.backend, step.exec));
}
template <typename Params>
void RunCudaTold(const ExecContext& ctx, CudaStatus (*CudaBackend::*op)(const CudaExec&, const Params&), const Params& params) {
  RunCudaTold(ctx, [&](const CudaBackend& cuda, const CudaExec& exec) { return (cuda.*op)(exec, params); });
}

// The same for what may write anywhere.
template <typename Launch>
  requires std::is_invocable_r_v<CudaStatus, Launch, const CudaBackend&, const CudaExec&>
void RunCuda(const ExecContext& ctx, Launch launch) {
  ctx.cuda->halves.Clear();
  RunCudaTold(ctx, launch);
}

// Runs a row of the backend's table, unless the step has failed already or is only planned (no backend: a dry run that
// finds out how much memory a step takes).
template <typename Params>
void RunCuda(const ExecContext& ctx, CudaStatus (*CudaBackend::*op)(const CudaExec&, const Params&), const Params& params) {
  ctx.cuda->halves.Clear();
  RunCudaTold(ctx, op, params);
}

}  // namespace cachalot
