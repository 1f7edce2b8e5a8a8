// ModelBundle: a model opened from a path, ready for an Engine: tokenizer, chat template, weights and runtime.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/kv_gate_options.h"
#include "engine/kv_types.h"
#include "model/layers/mla.h"
#include "model/model_spec.h"
#include "runtime/executor.h"
#include "tokenizer/chat/tool_syntax.h"

namespace cachalot {

class ChatTemplate;
class CudaRuntime;
class Runtime;
class Tokenizer;
class TensorSource;

struct ModelOptions {
  std::string path;              // a GGUF file, or a Hugging Face folder
  std::string dummy;             // instead of path: a dummy SPEC (generated weights)
  int32_t dummy_layers = 0;      // 0: all
  std::string dummy_type = "";   // "": the spec's own
  std::string isa = "auto";      // auto, ref, avx2, avx512
  int32_t num_threads = 0;       // 0: physical cores
  KvOptions kv;
  KvGateOptions kv_gate;
  int32_t context = 0;           // tokens of one sequence; 0: the model's own, at most 4096 (like llama.cpp's default)
  int32_t max_seqs = 1;
  int32_t max_step_tokens = 512;
  int32_t max_logit_rows = 1;
  int64_t kv_tokens = 0;         // KV capacity over all sequences; 0: max_seqs * context
  int64_t swap_tokens = 0;       // KV capacity for preempted sequences, beside it (EngineOptions::preemption)
  int32_t block_tokens = 16;
  int64_t kv_host_bytes = 0;     // as EngineOptions has it, beside the rest of the memory plan
  std::string kv_disk_dir = "";  // as EngineOptions has it, with the next: then blocks are named by every byte of the weights
  int64_t kv_disk_bytes = 0;
  bool names_every_byte = false; // so too, for a KV cache in a file
  bool use_mmap = true;
  bool mlock = false;
  bool deterministic = false;
  bool load_mtp = false;
  MlaForm mla_form = MlaForm::kByCost;
  int64_t mla_piece_tokens = 0;  // as ForwardBatch has it; tests
  int64_t kv_slice_bytes = 0;    // as RuntimeOptions has it; tests
  // Drafting by the model's MTP layer or by a second model; n-gram drafts need nothing of the runtime but max_drafts.
  DraftKind drafts = DraftKind::kNone;
  int32_t max_drafts = 4;
  bool adaptive_drafts = true;   // as EngineOptions has it, like the two before
  int32_t draft_head_tokens = 0; // of kMtp: it drafts only tokens below this; 0: any
  std::string draft_path = "";   // of kModel: a GGUF file or a folder
  float draft_accept_fixed = -1.0f;  // benchmarks only (RuntimeOptions::accept_fixed)
  // Where layers run. "auto": on the GPU if there is one, as many of them as its memory holds.
  std::string device = "cpu";    // auto, cpu, cuda
  int32_t gpu_layers = -1;       // the last layers on the GPU (llama.cpp's -ngl); -1: as many as fit; all: also the embedding
  int64_t gpu_memory = 0;        // bytes that may be used there; 0: by gpu_memory_utilization
  float gpu_memory_utilization = 0.9f;  // of the card's memory, what others use included
  std::string cuda_library = "";  // libcachalot_cuda.so; "": beside the program, then as the system searches
  bool gpu_exact = false;        // F32 arithmetic on the GPU
  bool gpu_graphs = true;
  int32_t gpu_depth = 1;         // steps launched before the last is collected
  std::string trace_streams = "";  // a file for what the GPU's streams do (runtime/cuda_stream_trace.h); "": none
};

// The exact plan of memory, made before any weight is read.
struct MemoryPlan {
  int64_t weight_bytes = 0;      // owned by us, after repacking
  int64_t borrowed_bytes = 0;    // read in place from the mapped file
  int64_t kv_bytes = 0;
  int64_t workspace_bytes = 0;   // activations, scratch and logits
  // What must be allocated: files that are mapped need not stay in memory.
  int64_t owned_bytes() const { return weight_bytes + kv_bytes + workspace_bytes; }
  int64_t total_bytes() const { return owned_bytes() + borrowed_bytes; }
  // On the GPU; 0 layers: it is not used.
  int32_t gpu_layers = 0;
  int64_t gpu_weight_bytes = 0;
  int64_t gpu_kv_bytes = 0;
  int64_t gpu_workspace_bytes = 0;
  int64_t gpu_graph_bytes = 0;
  int64_t gpu_limit_bytes = 0;
  int64_t gpu_bytes() const { return gpu_weight_bytes + gpu_kv_bytes + gpu_workspace_bytes + gpu_graph_bytes; }
  int64_t kv_tokens = 0;         // over all sequences
};

// Default sampling that the model's files ask for (generation_config.json, GGUF general.sampling.*).
struct GenerationDefaults {
  float temperature = -1.0f;     // -1: not given
  int32_t top_k = -1;
  float top_p = -1.0f;
  float min_p = -1.0f;
  float repetition_penalty = -1.0f;
};

struct ModelBundle {
  ~ModelBundle();
  ModelBundle();
  ModelBundle(ModelBundle&&) noexcept;
  ModelBundle& operator=(ModelBundle&&) noexcept;

  ModelSpec spec;
  MemoryPlan memory;
  KvChoice kv;
  GenerationDefaults generation;
  std::unique_ptr<Tokenizer> tokenizer;       // null when the model has none, or one that we cannot run:
  Status tokenizer_error;                     // then this says why
  std::unique_ptr<ChatTemplate> chat_template;  // null when there is no tokenizer; ChatML when the model has none
  Status template_error;                      // not ok: the model's own template was refused, chat_template is null
  ToolSyntax tool_syntax = ToolSyntax::kNone; // how the model writes calls: as its template prints them, unless the user knows better
  bool has_own_template = false;              // false: chat_template is ChatML by default
  std::unique_ptr<TensorSource> draft_source;  // the same for the draft model
  std::unique_ptr<TensorSource> source;       // outlives the runtime where weights are read in place
  std::unique_ptr<StepExecutor> runtime;      // null after PlanModel
  Runtime* cpu_runtime = nullptr;             // the same, where all layers are on the CPU
  CudaRuntime* cuda_runtime = nullptr;        // or where some are on the GPU
};

// Opens everything but the weights: spec, tokenizer, template, memory plan. Fast; what `inspect` shows.
Result<ModelBundle> PlanModel(const ModelOptions& options);
// PlanModel, then loads weights and builds the runtime.
Result<ModelBundle> OpenModel(const ModelOptions& options);

}  // namespace cachalot
