// CudaRuntime: turns step plans into work on one GPU; the first layers may run on the CPU. All step state lives on the
// device, so a step can be launched before the last one is collected (depth 1).
//
// Decode, where every sequence adds one token, is one graph launch: copy in, compute, copy out. Graphs are captured when a
// bucket of batch sizes is first needed, and all share one memory; rows beyond the batch are padding that no op looks at.
// Every other step launches the same ops one by one. Both give the same bits, but for experts in fast arithmetic, whose tiles
// follow the padded number of rows.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "obs/export/chrome_trace.h"
#include "runtime/cuda_memory.h"
#include "runtime/executor.h"
#include "runtime/kv_store.h"

namespace cachalot {

// A model whose GPU weights lie in `arena`.
struct CudaModel {
  std::unique_ptr<Model> model;
  CudaBuffer arena;
};

class CudaRuntime final : public StepExecutor {
 public:
  struct Memory {
    int64_t weight_bytes = 0;     // device
    int64_t kv_bytes = 0;         // device
    int64_t workspace_bytes = 0;  // device: state, activations, logits, scratch
    int64_t graph_bytes = 0;      // device: an estimate of what the driver keeps for graphs and kernels
    int64_t host_kv_bytes = 0;
    int64_t host_bytes = 0;       // activations and scratch of the layers on the CPU, page-locked buffers
    int64_t device_bytes() const { return weight_bytes + kv_bytes + workspace_bytes + graph_bytes; }
  };
  // `planned` is Model::Plan's.
  static Memory PlanMemory(const CudaBackend& backend, const Model& planned, const CudaRuntimeOptions& options, int32_t num_sms);

  // `load` loads the model, now and again after the device was lost. `pool` also serves the layers on the CPU.
  static Result<std::unique_ptr<CudaRuntime>> Create(const CudaBackend* backend, std::function<Result<CudaModel>()> load,
                                                     std::unique_ptr<ThreadPool> pool, const CudaRuntimeOptions& options);
  ~CudaRuntime() override;

  const ExecutorInfo& info() const override { return info_; }
  Status Launch(const StepPlan& plan) override;
  Status Collect(StepResult* result) override;
  // Waits for the device. Where it is lost, it is reset, the weights are loaded and all state is built anew.
  Status Recover() override;
  // KV blocks from outside (runtime/cuda_transfers.h).
  bool can_move_blocks() const override { return true; }
  Status ReadBlock(int32_t group, int32_t block, std::span<std::byte> out) override;
  Status WriteBlock(int32_t group, int32_t block, std::span<const std::byte> bytes) override;
  Status StartTransfers(std::span<const BlockTransfer> transfers) override;
  Result<int64_t> TransfersDone() override;
  double transfer_bytes_per_second() const override;
  Status PinHost(std::span<std::byte> memory) override;
  void UnpinHost(std::span<std::byte> memory) override;

  // What a step must read at least: every dense weight once, the experts that got a token, the cached tokens.
  int64_t moved_bytes() const override { return moved_bytes_; }

  // How kernels are launched and chosen from the next step on, for measuring: device/cuda/cuda_tune.h, and launch=graph|ops, whether decode
  // steps are graph launches or launched op by op like all others, and stream=usual|high|first:N|rest:N, on which they are computed: one of
  // low or high priority, or with N SMs of its own or all others (cuda_partition.h). Graphs are captured anew.
  Status SetTune(const std::string& settings);

  // Bytes a second at which the device can read its memory, measured now; takes 1 GiB beside the plan for a moment.
  Result<double> ReadBandwidth() const;

  const Model& model() const;
  const CudaRuntimeOptions& options() const { return options_; }
  const CudaDeviceInfo& device() const { return device_info_; }
  int64_t num_graph_launches() const { return num_graph_launches_; }
  int32_t num_graphs() const;

 private:
  struct Device;  // everything that dies with the device
  struct InFlight;
  // What a captured step is made for: bounds of its spans and rows, and with drafts the most in a row, and how many states
  // may wait for the MTP layer in a slot.
  struct GraphShape {
    int32_t spans = 0;
    int32_t rows = 0;
    int32_t drafts = 0;
    int32_t waiting = 0;
    auto operator<=>(const GraphShape&) const = default;
  };

  // How the device makes a step's drafts: so many passes of the MTP layer, with `stride` rows a span in the first. 0: none.
  struct DraftPasses {
    int32_t passes = 0;
    int32_t stride = 0;
  };

  CudaRuntime() = default;
  Status BuildDevice();
  Status UseStream(const std::string& kind);
  static std::vector<int32_t> MakeBuckets(int32_t max_seqs);
  static int64_t MaxGraphs(const CudaRuntimeOptions& options);
  bool FitsGraph(const StepPlan& plan, const InFlight& step) const;
  bool WaitsByLayer(const StepPlan& plan, const InFlight& step) const;
  int32_t Bucket(int32_t num_rows) const;
  GraphShape ShapeOf(const StepPlan& plan, const InFlight& step) const;
  CudaStepBounds BoundsOf(const GraphShape& shape) const;

  // The parts of Launch (cuda_runtime.cc).
  void Order(const StepPlan& plan, InFlight* step);
  Status FillInput(const StepPlan& plan, const CudaStepBounds& bounds, InFlight* step);
  void FillSetup(const StepPlan& plan, const SlotSetup& setup, CudaSlotSetup* out);
  Status SendSetups(const StepPlan& plan);
  Status LaunchGraph(const GraphShape& shape, InFlight* step);
  Status Capture(const GraphShape& shape, const InFlight& step);
  Status LaunchOps(const StepPlan& plan, InFlight* step);
  void CountBytes(const InFlight& step);
  // The ops of a step (cuda_step_ops.cc).
  void SetBatch(const CudaStepBounds& bounds, int32_t max_q_len, int64_t expanded_tokens);
  void EnqueueForward(const CudaStepBounds& bounds, int32_t max_q_len, const DraftPasses& drafts, const InFlight* step);
  void EnqueueOutputs(int64_t begin, int64_t count, const float* hidden);
  void EnqueueEnd(const CudaStepBounds& bounds);
  // Drafts by the MTP layer (cuda_step_drafts.cc).
  Status BuildDrafts();
  void CountDrafts(const StepPlan& plan, InFlight* step);
  void CountWaiting(const StepPlan& plan);
  int32_t DraftStride(const InFlight& step) const;
  void SetMtpBatch(int32_t num_spans, int32_t num_rows, int32_t max_q_len, int32_t first_row);
  void EnqueuePlans();
  CudaDraftBeginParams DraftBegin(const CudaStepBounds& bounds, int32_t stride, int32_t begin) const;
  CudaDraftSpans DraftSpans(const CudaStepBounds& bounds) const;
  CudaDraftRows DraftRows(const CudaStepBounds& bounds) const;
  void PlanWithDrafts(const CudaStepBounds& bounds, int32_t stride);
  void EnqueueDrafts(const CudaStepBounds& bounds, const DraftPasses& drafts);
  void PickInTiles(int32_t num_spans);
  void EnqueueFeed(const CudaStepBounds& bounds, int32_t max_q_len);
  Status RunCpuLayers(const StepPlan& plan, InFlight* step);
  Status SendOutputs(const StepPlan& plan, InFlight* step);
  Status FindPromptTops(const StepPlan& plan, int64_t begin, int64_t count, InFlight* step);
  Status SendMtp(const StepPlan& plan, InFlight* step);
  Status Download(const void* device, int64_t bytes, void* host);

  CudaRuntimeOptions options_;
  ExecutorInfo info_;
  CudaDeviceInfo device_info_;
  const CudaBackend* backend_ = nullptr;
  std::function<Result<CudaModel>()> load_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<ChromeTrace> trace_file_;  // null: none; outlives the device
  std::unique_ptr<Device> device_;
  MlaForm mla_form_ = MlaForm::kByCost;
  std::vector<int32_t> buckets_;
  bool built_ = false;  // device_ is whole
  std::vector<std::span<std::byte>> pinned_;  // of others
  bool tuned_to_ops_ = false;  // SetTune: decode steps too are launched op by op
  int64_t num_graph_launches_ = 0;
  int64_t moved_bytes_ = 0;
  uint64_t next_step_ = 0;    // of launches: says whose buffers are used
  uint64_t next_collect_ = 0;
  int32_t num_one_off_ = 0;   // steps to come whose time holds a capture
};

}  // namespace cachalot
