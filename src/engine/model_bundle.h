// ModelBundle: a model opened from a path, ready for an Engine: tokenizer, chat template, weights and runtime.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/layers/mla.h"
#include "model/model_spec.h"
#include "runtime/executor.h"

namespace cachalot {

class ChatTemplate;
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
  std::string kv_type = "auto";  // auto (f16), f32, f16, bf16
  int32_t context = 0;           // tokens of one sequence; 0: the model's own, at most 4096 (like llama.cpp's default)
  int32_t max_seqs = 1;
  int32_t max_step_tokens = 512;
  int32_t max_logit_rows = 1;
  int64_t kv_tokens = 0;         // KV capacity over all sequences; 0: max_seqs * context
  int32_t block_tokens = 16;
  bool use_mmap = true;
  bool mlock = false;
  bool deterministic = false;
  bool load_mtp = false;
  MlaForm mla_form = MlaForm::kByCost;
};

// The exact plan of memory, made before any weight is read.
struct MemoryPlan {
  int64_t weight_bytes = 0;      // owned by us, after repacking
  int64_t borrowed_bytes = 0;    // read in place from the mapped file
  int64_t kv_bytes = 0;
  int64_t workspace_bytes = 0;   // activations, scratch and logits
  int64_t total_bytes() const { return weight_bytes + borrowed_bytes + kv_bytes + workspace_bytes; }
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
  GenerationDefaults generation;
  std::unique_ptr<Tokenizer> tokenizer;       // null when the model has none, or one that we cannot run:
  Status tokenizer_error;                     // then this says why
  std::unique_ptr<ChatTemplate> chat_template;  // null when there is no tokenizer; ChatML when the model has none
  Status template_error;                      // not ok: the model's own template was refused, chat_template is null
  bool has_own_template = false;              // false: chat_template is ChatML by default
  std::unique_ptr<TensorSource> source;       // outlives the runtime where weights are read in place
  std::unique_ptr<Runtime> runtime;           // a StepExecutor; null after PlanModel
};

// Opens everything but the weights: spec, tokenizer, template, memory plan. Fast; what `inspect` shows.
Result<ModelBundle> PlanModel(const ModelOptions& options);
// PlanModel, then loads weights and builds the runtime.
Result<ModelBundle> OpenModel(const ModelOptions& options);

}  // namespace cachalot
