// GpuPlan: whether and how much of a model runs on the GPU, decided before any weight is read, from the same plan of memory
// that loading then keeps to.
#pragma once

#include <optional>

#include "engine/model_bundle.h"
#include "runtime/cuda_runtime.h"

namespace cachalot {

struct GpuPlan {
  const CudaBackend* backend = nullptr;
  std::string card;        // its name
  int32_t num_layers = 0;  // the last ones of the model; all: the embedding too
  CudaRuntimeOptions options;
  MemoryPlan memory;
};

// In exact arithmetic drafts are the CPU's.
inline bool RoughDrafts(const ModelOptions& options) { return options.drafts == DraftKind::kMtp && !options.gpu_exact; }

// Nothing: everything runs on the CPU, because that was asked for, or because "auto" found no GPU or no room for a layer.
// kExhausted: what was asked for does not fit; says by how much. kNotFound: "cuda" was asked for and there is none.
// Where the KV capacity is not given, it is what the memory leaves, for at least one sequence and at most all of them.
Result<std::optional<GpuPlan>> PlanGpu(const ModelOptions& options, const ModelSpec& spec, const TensorSource& source,
                                       ModelBuildOptions build, const RuntimeOptions& runtime);

}  // namespace cachalot
