#include "engine/gpu_plan.h"

#include <algorithm>

#include "base/available_memory.h"
#include "base/log.h"
#include "weights/tensor_source.h"

namespace cachalot {
namespace {

struct Gpu {
  const CudaBackend* backend = nullptr;
  CudaDeviceInfo info;
  int64_t limit = 0;  // bytes that we may take
};

Result<Gpu> FindGpu(const ModelOptions& options) {
  Gpu gpu;
  ASSIGN_OR_RETURN(gpu.backend, LoadCudaBackend(options.cuda_library));
  int count = 0;
  RETURN_IF_ERROR(FromCuda(gpu.backend->device_count(&count)));
  if (count == 0) return NotFound("no CUDA device");
  RETURN_IF_ERROR(FromCuda(gpu.backend->device_info(0, &gpu.info)));
  RETURN_IF_ERROR(CheckCudaCard(*gpu.backend, gpu.info));
  int64_t free_bytes = 0, total_bytes = 0;
  RETURN_IF_ERROR(FromCuda(gpu.backend->memory_info(&free_bytes, &total_bytes)));
  const auto share = static_cast<int64_t>(static_cast<double>(options.gpu_memory_utilization) * static_cast<double>(total_bytes));
  gpu.limit = options.gpu_memory > 0 ? std::min(options.gpu_memory, free_bytes)
                                     : std::min(share - (total_bytes - free_bytes), free_bytes);
  return gpu;
}

class Planner {
 public:
  Planner(const ModelOptions& options, const ModelSpec& spec, const TensorSource& source, const ModelBuildOptions& build,
          const RuntimeOptions& runtime, const Gpu& gpu)
      : options_(options), spec_(spec), source_(source), build_(build), runtime_(runtime), gpu_(gpu) {}

  // With the last `layers` layers on the GPU, and as many KV tokens as were asked for, or fit.
  Result<GpuPlan> With(int32_t layers) const {
    ModelBuildOptions build = build_;
    build.num_cuda_layers = layers;
    build.cuda_exact = options_.gpu_exact;
    build.rough_drafts = RoughDrafts(options_);
    ASSIGN_OR_RETURN(const auto model, Model::Plan(spec_, source_, build));
    GpuPlan plan;
    plan.backend = gpu_.backend;
    plan.card = gpu_.info.name;
    plan.num_layers = layers;
    plan.options = {.base = runtime_, .exact = options_.gpu_exact, .use_graphs = options_.gpu_graphs, .depth = options_.gpu_depth,
                    .trace_streams = options_.trace_streams};
    int64_t& tokens = plan.options.base.kv_tokens;
    if (options_.kv_tokens == 0) {
      // Bytes grow in proportion to the tokens: two plans tell the room for them.
      const int64_t most = int64_t{runtime_.max_seqs} * runtime_.max_context;
      const int64_t least = std::min<int64_t>(most, runtime_.max_context);
      tokens = least;
      const int64_t with_least = Plan(*model, plan.options).gpu_bytes();
      tokens = most;
      const int64_t with_most = Plan(*model, plan.options).gpu_bytes();
      if (with_most > gpu_.limit) {
        const double share = static_cast<double>(std::max<int64_t>(0, gpu_.limit - with_least)) /
                             static_cast<double>(std::max<int64_t>(1, with_most - with_least));
        tokens = least + static_cast<int64_t>(share * static_cast<double>(most - least)) / runtime_.block_tokens * runtime_.block_tokens;
      }
    }
    plan.memory = Plan(*model, plan.options);
    return plan;
  }

 private:
  MemoryPlan Plan(const Model& model, const CudaRuntimeOptions& options) const {
    const CudaRuntime::Memory memory = CudaRuntime::PlanMemory(*gpu_.backend, model, options, gpu_.info.num_sms);
    MemoryPlan plan;
    plan.weight_bytes = model.weight_bytes().owned;
    plan.borrowed_bytes = model.weight_bytes().borrowed;
    plan.kv_bytes = memory.host_kv_bytes;
    plan.workspace_bytes = memory.host_bytes;
    plan.gpu_layers = model.num_cuda_layers();
    plan.gpu_weight_bytes = memory.weight_bytes;
    plan.gpu_kv_bytes = memory.kv_bytes;
    plan.gpu_workspace_bytes = memory.workspace_bytes;
    plan.gpu_graph_bytes = memory.graph_bytes;
    plan.gpu_limit_bytes = gpu_.limit;
    plan.kv_tokens = options.base.kv_tokens;
    return plan;
  }

  const ModelOptions& options_;
  const ModelSpec& spec_;
  const TensorSource& source_;
  const ModelBuildOptions& build_;
  const RuntimeOptions& runtime_;
  const Gpu& gpu_;
};

Status DoesNotFit(const GpuPlan& plan, const char* advice) {
  const MemoryPlan& m = plan.memory;
  return Exhausted(
      "{} layers on the GPU take {:.2f} GiB (weights {:.2f}, KV cache {:.2f}, activations {:.2f}, graphs {:.2f}), the limit is {:.2f} GiB: {}",
      plan.num_layers, GiB(m.gpu_bytes()), GiB(m.gpu_weight_bytes), GiB(m.gpu_kv_bytes), GiB(m.gpu_workspace_bytes),
      GiB(m.gpu_graph_bytes), GiB(m.gpu_limit_bytes), advice);
}

}  // namespace

Result<std::optional<GpuPlan>> PlanGpu(const ModelOptions& options, const ModelSpec& spec, const TensorSource& source,
                                       ModelBuildOptions build, const RuntimeOptions& runtime) {
  const std::optional<GpuPlan> nothing;
  if (options.device == "cpu" || options.gpu_layers == 0) return nothing;
  auto found = FindGpu(options);
  if (!found.ok()) {
    if (options.device == "cuda") return found.status().WithContext("device cuda");
    // A machine without a card is nothing to talk about; a library that is cut off, or a card that is too old, is.
    const StatusCode code = found.status().code();
    const bool surprising = options.gpu_layers > 0 || code == StatusCode::kCorrupt || code == StatusCode::kUnsupported;
    if (surprising) LOG_WARN("all layers run on the CPU, since the GPU cannot be used: {}", found.status().message());
    else LOG_DEBUG("no GPU: {}", found.status().message());
    return nothing;
  }
  const Gpu gpu = std::move(found).value();
  const Planner planner(options, spec, source, build, runtime, gpu);
  const auto fits = [](const GpuPlan& plan) { return plan.memory.gpu_bytes() <= plan.memory.gpu_limit_bytes; };
  if (options.gpu_layers > 0) {
    ASSIGN_OR_RETURN(GpuPlan plan, planner.With(std::min(options.gpu_layers, spec.num_layers)));
    if (!fits(plan)) return DoesNotFit(plan, "fewer layers (-ngl), a shorter context (-c) or a smaller batch (-b) need less");
    return std::optional(std::move(plan));
  }
  auto whole = planner.With(spec.num_layers);
  if (!whole.ok()) {
    // A type that no GPU kernel reads yet: the CPU reads it.
    if (options.device == "cuda" || whole.status().code() != StatusCode::kUnsupported) return whole.status();
    LOG_WARN("on the CPU, since the GPU cannot run it: {}", whole.status().message());
    return nothing;
  }
  if (fits(*whole)) return std::optional(std::move(whole).value());
  // The most layers that fit: what they take grows with their number.
  int32_t fitting = 0, too_many = spec.num_layers;
  std::optional<GpuPlan> best;
  while (too_many - fitting > 1) {
    const int32_t middle = fitting + (too_many - fitting) / 2;
    ASSIGN_OR_RETURN(GpuPlan plan, planner.With(middle));
    if (fits(plan)) {
      fitting = middle;
      best = std::move(plan);
    } else {
      too_many = middle;
    }
  }
  if (!best && options.device == "cuda") {
    ASSIGN_OR_RETURN(const GpuPlan one, planner.With(1));
    return DoesNotFit(one, "not even one layer fits; a shorter context (-c) or a smaller batch (-b) need less");
  }
  return best;
}

}  // namespace cachalot
