// What CudaRuntime keeps: all that dies with the device, and the two steps that may be in flight. Internal to it.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda_runtime.h"
#include "runtime/cuda_stream_trace.h"
#include "runtime/cuda_transfers.h"
#include "runtime/draft_activity.h"

namespace cachalot {

// A step between Launch and Collect. Its page-locked buffers are written by the device until `done`.
struct CudaRuntime::InFlight {
  const StepPlan* plan = nullptr;
  bool active = false;
  bool moves_only = false;
  std::byte* input_host = nullptr;
  std::byte* output_host = nullptr;
  TokenLogprob* top_host = nullptr;  // [wanted, kMaxCudaTopLogprobs]
  void* done = nullptr;              // event
  CudaStepInput input;               // views of the above, as this step lays them out
  CudaStepOutput output;

  // Rows in MLA's expanded form come last; otherwise in the plan's order.
  std::vector<SeqSpan> spans;
  std::vector<int32_t> row_begin;  // [plan rows]
  std::vector<int32_t> row_order;  // [spans] the plan's row behind each
  std::vector<int32_t> span_of_row;  // [plan rows]
  int64_t num_rows = 0;
  size_t num_expanded = 0;
  int64_t num_expanded_tokens = 0;
  int32_t expand_min_tokens = 0;
  int32_t max_q_len = 0;
  // Positions whose logits are wanted, row by row.
  struct Wanted {
    int32_t row_idx = 0;
    int32_t position = 0;  // within the row
  };
  std::vector<Wanted> wanted;
  // Drafts that the device makes: the most of a row, and how many states wait for the MTP layer in a drafted slot, at most.
  int32_t max_drafts = 0;
  int32_t max_waiting = 0;
  bool feeds = false;  // rows that are not sampled from
  bool waits_by_layer = false;  // for blocks on their way
  bool any_top = false;
  bool any_targets = false;
  CudaStreamTrace::Step traced;
  StepResult result;  // rows, and what is downloaded while launching
};

struct CudaRuntime::Device {
  explicit Device(const CudaBackend* cuda) : backend(cuda) {}
  ~Device();

  const CudaBackend* backend;
  CudaModel model;
  KvStore kv;
  CudaBuffer step_buffer;
  CudaStepMemory memory;
  void* stream = nullptr;
  bool owns_stream = true;
  std::string stream_kind = "usual";
  CudaTransfers transfers;
  void* matmul_plans = nullptr;
  std::array<InFlight, 2> in_flight;
  std::unique_ptr<CudaStreamTrace> trace;  // null: none
  struct Graph {
    std::array<void*, 2> launchable = {};  // one for each in-flight buffer
    uint64_t last_used = 0;                // a launch
  };
  std::map<GraphShape, Graph> graphs;
  void ForgetGraphs();  // none of them is running
  void ForgetGraph(Graph* graph);

  Workspace workspace;
  CudaStep step;
  CudaStepBounds bounds;  // of the step being launched
  ExecContext exec;

  // Layers on the CPU.
  Workspace cpu_workspace;
  ExecContext cpu_exec;
  ExecCounters cpu_counters;
  float* cpu_hidden = nullptr;  // page-locked [rows, hidden_size]
  std::vector<int32_t> cpu_tokens;
  std::vector<int32_t> cpu_positions;
  std::vector<int32_t> cpu_counts;   // [MoE layers, experts]
  std::vector<int32_t> last_tokens;  // [max_seqs], as collected

  // Of an MTP layer that drafts.
  KvStore draft_kv;                  // a row of blocks for each slot
  std::vector<int32_t> waiting;      // [max_seqs] states that wait for it, at most
  DraftActivity draft_activity;

  void* AllocateHost(int64_t bytes, Status* status);
  std::vector<void*> host_buffers;
};

}  // namespace cachalot
