// CudaBackend: everything the engine asks of libcachalot_cuda.so, as one table of functions. Plain structs and device
// pointers: whoever includes this needs no CUDA header, and the library's code sees no fmt and no Status.
//
// Invariants of the ops: they launch on CudaExec::stream and return; they never allocate, synchronise or read device
// memory from the host, so each can be captured into a graph. What varies from step to step is read from device memory;
// the host passes upper bounds (a bucket's number of rows and spans). A row of no sequence has slot -1 and is skipped.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/cuda_exec.h"

namespace cachalot {

// Defined in the ops' headers: kernels/<op>/<op>.h and <op>_cuda.h, kernels/common/cuda_batch.h.
struct AttentionParams;
struct CudaAttentionPlan;
struct CudaAttentionShape;
struct CudaBatch;
struct CudaDraftBeginParams;
struct CudaDraftFeedParams;
struct CudaDraftNextParams;
struct CudaEmbedParams;
struct CudaHeadMatmulParams;
struct CudaMatmulChain;
struct CudaMatmulParams;
struct CudaMlaAssembleParams;
struct CudaMlaGatherParams;
struct CudaMlaSplitParams;
struct CudaMoeGateParams;
struct CudaMoeCombineParams;
struct CudaMoeFewParams;
struct CudaMoeMatmulParams;
struct CopyHeadsParams;
struct CudaGatherRowsParams;
struct CudaLogprobParams;
struct CudaSampleHistoryParams;
struct CudaSampleParams;
struct CudaStepBeginParams;
struct CudaStepEndParams;
struct MoeRouteParams;
struct MoeSortParams;
struct RmsNormParams;
struct RopeAppendParams;
struct RopeTableParams;
struct SwiGluParams;

inline constexpr int kCudaBackendVersion = 10;

struct CudaBackend {
  int32_t version = 0;
  bool has_ptx = false;  // compute_80, for cards other than kCudaOwnCapability

  // --- devices, memory, streams, events, graphs (device/cuda/cuda_context.cc) ---
  CudaStatus (*device_count)(int* count);
  CudaStatus (*device_info)(int device, CudaDeviceInfo* info);
  CudaStatus (*set_device)(int device);  // of the calling thread
  CudaStatus (*memory_info)(int64_t* free_bytes, int64_t* total_bytes);
  CudaStatus (*allocate)(int64_t bytes, void** data);  // device memory, 256-byte aligned
  CudaStatus (*release)(void* data);
  CudaStatus (*allocate_host)(int64_t bytes, void** data);  // page-locked
  CudaStatus (*release_host)(void* data);
  CudaStatus (*pin_host)(void* data, int64_t bytes);  // page-locks what the caller has; reset_device lets go of it
  CudaStatus (*unpin_host)(void* data);
  CudaStatus (*stream_create)(bool high_priority, void** stream);
  CudaStatus (*stream_destroy)(void* stream);
  CudaStatus (*stream_synchronize)(void* stream);
  CudaStatus (*stream_wait_event)(void* stream, void* event);
  CudaStatus (*event_create)(bool timing, void** event);
  CudaStatus (*event_destroy)(void* event);
  CudaStatus (*event_record)(void* event, void* stream);
  CudaStatus (*event_synchronize)(void* event);
  CudaStatus (*event_query)(void* event, bool* done);
  CudaStatus (*event_elapsed_ms)(void* begin, void* end, float* ms);
  CudaStatus (*copy)(void* dst, const void* src, int64_t bytes, void* stream);  // any direction
  CudaStatus (*fill)(void* dst, int value, int64_t bytes, void* stream);        // every byte
  CudaStatus (*graph_begin)(void* stream);
  CudaStatus (*graph_end)(void* stream, void** graph);  // what was captured: not yet to be launched
  CudaStatus (*graph_release)(void* graph);
  // The fixed-shape step: copy in, then what was captured, then copy out, as one graph of three nodes.
  CudaStatus (*step_graph_create)(const CudaStepCopies& copies, void* captured, void** step_graph);
  CudaStatus (*step_graph_launch)(void* step_graph, void* stream);
  CudaStatus (*step_graph_destroy)(void* step_graph);
  // Bytes a second at which the device reads `bytes` of its memory: the roof that speeds are compared with. Allocates, waits.
  CudaStatus (*read_bandwidth)(int64_t bytes, int repeats, double* bytes_per_second);
  // How kernels are launched and chosen from now on, for measuring: cuda_tune.h. Not while another thread launches.
  CudaStatus (*set_tune)(const char* settings);
  CudaStatus (*reset_device)();  // after a fault: everything of this process on the device is gone

  // --- ops: src/kernels/<op>/*_sm80.cu ---
  CudaStatus (*batch_rows)(const CudaExec& exec, const CudaBatch& batch);
  CudaStatus (*embed)(const CudaExec& exec, const CudaEmbedParams& params);
  CudaStatus (*rms_norm)(const CudaExec& exec, const RmsNormParams& params);
  CudaStatus (*rope_table)(const CudaExec& exec, const RopeTableParams& params);
  // Whether a call is to do what MLA does around it too; it can at any number of rows.
  bool (*rope_append_fuses)();
  // params.spans is not read: rows are those of the batch.
  CudaStatus (*rope_append)(const CudaExec& exec, const CudaBatch& batch, const RopeAppendParams& params);
  CudaStatus (*swiglu)(const CudaExec& exec, const SwiGluParams& params);

  int64_t (*attention_plan_bytes)(const CudaAttentionShape& shape, const CudaBatch& batch, int32_t num_sms);
  // The schedule of a step: once for all layers of one shape. Reads the batch's spans on the device.
  CudaStatus (*attention_plan)(const CudaExec& exec, const CudaBatch& batch, const CudaAttentionPlan& plan);
  // Of two batches with plans of their own, in one launch where both have few spans.
  CudaStatus (*attention_plan_of_two)(const CudaExec& exec, const CudaBatch& batch, const CudaAttentionPlan& plan, const CudaBatch& other,
                                      const CudaAttentionPlan& other_plan);
  // params.spans is not read.
  CudaStatus (*attention)(const CudaExec& exec, const CudaBatch& batch, const CudaAttentionPlan& plan,
                          const AttentionParams& params);

  // The router in one launch, where moe_gate_fuses says so. row_slots: as moe_sort.
  bool (*moe_gate_fuses)(const CudaExec& exec, const CudaMoeGateParams& params);
  CudaStatus (*moe_gate)(const CudaExec& exec, const CudaMoeGateParams& params, const int32_t* row_slots);
  CudaStatus (*moe_route)(const CudaExec& exec, const MoeRouteParams& params);
  // row_slots: CudaBatch's, or null; the pairs of rows without a slot are left out.
  CudaStatus (*moe_sort)(const CudaExec& exec, const MoeSortParams& params, const int32_t* row_slots);

  // Once a step: a batch's spans into those whose MLA is absorbed and those whose MLA is expanded.
  CudaStatus (*mla_split)(const CudaExec& exec, const CudaBatch& batch, const CudaMlaSplitParams& params);
  CudaStatus (*mla_gather)(const CudaExec& exec, const CudaMlaGatherParams& params);
  CudaStatus (*mla_assemble)(const CudaExec& exec, const CudaMlaAssembleParams& params);

  CudaStatus (*copy_heads)(const CudaExec& exec, const CopyHeadsParams& params);
  // A step's frame (kernels/step/step.h).
  CudaStatus (*step_begin)(const CudaExec& exec, const CudaStepBeginParams& params);
  CudaStatus (*step_end)(const CudaExec& exec, const CudaStepEndParams& params);
  // Drafts by an MTP layer (kernels/step/draft.h).
  CudaStatus (*draft_begin)(const CudaExec& exec, const CudaDraftBeginParams& params);
  CudaStatus (*draft_next)(const CudaExec& exec, const CudaDraftNextParams& params);
  CudaStatus (*draft_feed)(const CudaExec& exec, const CudaDraftFeedParams& params);
  CudaStatus (*gather_rows)(const CudaExec& exec, const CudaGatherRowsParams& params);
  CudaStatus (*logprob_rows)(const CudaExec& exec, const CudaLogprobParams& params);

  CudaStatus (*sample_history)(const CudaExec& exec, const CudaSampleHistoryParams& params);
  CudaStatus (*sample)(const CudaExec& exec, const CudaSampleParams& params);

  // Once for each stream, before its first capture: what its matmuls keep (CudaExec::matmul_plans).
  CudaStatus (*matmul_init)(void** plans);
  void (*matmul_release)(void* plans);  // before reset_device; null: nothing
  // exec.workspace that a call of up to this many rows takes (m, max_pairs); pointers and strides are not looked at.
  int64_t (*matmul_workspace_bytes)(const CudaMatmulParams& params, int32_t num_sms);
  int64_t (*head_matmul_workspace_bytes)(const CudaHeadMatmulParams& params, int32_t num_sms);
  int64_t (*moe_matmul_workspace_bytes)(const CudaMoeMatmulParams& params, int32_t num_sms);
  // Whether a call may ask for its fusion: else norm and SwiGLU are ops of their own.
  bool (*matmul_fuses)(const CudaExec& exec, const CudaMatmulParams& params);
  bool (*moe_matmul_fuses)(const CudaExec& exec, const CudaMoeMatmulParams& params);
  CudaStatus (*matmul)(const CudaExec& exec, const CudaMatmulParams& params);
  // Matmuls of one row that follow each other in one launch, where matmul_chains says so.
  bool (*matmul_chains)(const CudaExec& exec, const CudaMatmulChain& chain);
  CudaStatus (*matmul_chain)(const CudaExec& exec, const CudaMatmulChain& chain);
  CudaStatus (*head_matmul)(const CudaExec& exec, const CudaHeadMatmulParams& params);
  CudaStatus (*moe_matmul)(const CudaExec& exec, const CudaMoeMatmulParams& params);
  // Experts and, beside them, a dense matmul in one launch, where moe_pair_fuses says so; neither may read what the other writes.
  bool (*moe_pair_fuses)(const CudaExec& exec, const CudaMoeMatmulParams& moe, const CudaMatmulParams& matmul);
  CudaStatus (*moe_pair)(const CudaExec& exec, const CudaMoeMatmulParams& moe, const CudaMatmulParams& matmul);
  CudaStatus (*moe_combine)(const CudaExec& exec, const CudaMoeCombineParams& params);
  // All of a mixture's experts behind the router for a few tokens, where moe_few_fuses says so.
  bool (*moe_few_fuses)(const CudaExec& exec, const CudaMoeFewParams& params);
  CudaStatus (*moe_few)(const CudaExec& exec, const CudaMoeFewParams& params);
};

}  // namespace cachalot

// What the engine asks the library for. Null when it cannot serve this version.
extern "C" const cachalot::CudaBackend* cachalot_cuda_backend(int version);
