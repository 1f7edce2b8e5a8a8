// What every function of the CUDA backend takes and returns.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cachalot {

// How a call failed. Becomes a Status on the caller's side (device/cuda/cuda_library.h).
enum class CudaFault : int32_t { kInvalid, kUnsupported, kExhausted, kDevice };
struct CudaFailure {
  CudaFault fault = CudaFault::kDevice;
  char message[500] = {};  // names the op and its shapes
};
// Null: all is well. Else valid until the thread's next failure.
using CudaStatus = const CudaFailure*;

enum class CudaMath : int32_t {
  kFast,  // 16-bit tensor cores, F32 accumulators
  kF32,   // F32 multiply-adds throughout: what golden tests compare
};

struct CudaDeviceInfo {
  char name[128] = {};
  int32_t compute_capability = 0;  // 90
  int32_t num_sms = 0;
  int64_t total_bytes = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes_per_block = 0;
};

// What every card must have: the most shared memory that a block of a kernel asks for which has no smaller way (the 163 KiB of
// compute capability 8.0; kernels for 9.0 alone may ask for more).
inline constexpr int64_t kCudaLeastSharedBytes = int64_t{163} << 10;
inline constexpr int32_t kCudaLeastCapability = 80;  // 16-bit tensor cores, asynchronous copies
inline constexpr int32_t kCudaOwnCapability = 90;    // the code that is always there: sm_90a

// What a step graph copies, before and after (either may be of no bytes); host memory is page-locked.
struct CudaStepCopies {
  void* in_dst = nullptr;
  const void* in_src = nullptr;
  int64_t in_bytes = 0;
  void* out_dst = nullptr;
  const void* out_src = nullptr;
  int64_t out_bytes = 0;
};

// Where an op runs.
struct CudaExec {
  void* stream = nullptr;  // a cudaStream_t
  int32_t num_sms = 0;
  CudaMath math = CudaMath::kFast;
  // Bits of a row do not depend on the batch or on chunking; costs speed.
  bool deterministic = false;
  // Scratch of the ops that want some (which, and how much, is said at the op); 256-byte aligned.
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
  // [kCudaCounters], zero before the stream's first op; each op leaves them zero. Null: matmuls are cut along n only.
  uint32_t* counters = nullptr;
  // What matmul_init made, for one stream's calls at a time. Null: cuBLASLt is not used.
  void* matmul_plans = nullptr;
};
inline constexpr int64_t kCudaCounters = 4096;

}  // namespace cachalot
