// ExecContext: where and how an op runs. It is passed explicitly to every op; there is no hidden global state.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "device/workspace.h"

namespace cachalot {

enum class DeviceType { kCpu, kCuda };

// What a step moved; ops add to it, tests and `bench` read it. Counted where the bytes are streamed, not derived.
struct ExecCounters {
  std::atomic<int64_t> weight_bytes{0};      // weights read from memory by matmuls
  std::atomic<int64_t> kv_bytes{0};          // KV cache read by attention
  std::atomic<int64_t> generic_calls{0};     // calls that fell back to the generic variant
};

struct CudaStep;  // kernels/common/cuda_step.h

struct ExecContext {
  DeviceType device = DeviceType::kCpu;
  Isa isa = Isa::kRef;
  ThreadPool* pool = nullptr;
  Workspace* workspace = nullptr;
  ExecCounters* counters = nullptr;
  // One fixed form of every computation, whatever the batch, chunking or caching: also where several would do and cost
  // decides otherwise (absorbed or expanded MLA, F16 prompts in int16).
  bool deterministic = false;
  CudaStep* cuda = nullptr;  // with kCuda: where its ops run; `workspace` is then device memory
};

}  // namespace cachalot
