// What the kernels over quantised caches share: the query's scale (attention_query.h in device code), and who takes which cache.
#pragma once

#include <cfloat>

#include "device/cuda/cuda_exec.h"
#include "kernels/attention/attention_split.cuh"
#include "kernels/common/cuda_kv_codes.h"

namespace cachalot {

// --- attention_codes_generic_sm80.cu: every shape ---
CudaStatus RunGenericCodesAttention(const CudaExec& exec, const CudaBatch& batch, const AttentionParams& params, const CodePlanes& planes);
// --- attention_codes_sm90.cu: heads of 64 and 128 in the formats of kv_format.cc; decode, and prefill of the spans that decode leaves ---
bool CodesCover(const AttentionParams& params, const CodePlanes& planes, const AttentionSchedule& schedule);
CudaStatus RunCodesDecode(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                          const CodePlanes& planes);
CudaStatus RunCodesPrefill(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                           const CodePlanes& planes);
// --- attention_sinks_sm80.cu: behind those two, the tokens that they leave out (AttentionSchedule::sinks) ---
bool SinksCover(const AttentionParams& params, const CodePlanes& planes);
CudaStatus RunSinks(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                    const CodePlanes& planes);
// --- attention_mla_codes_sm90.cu: latents of 512 and 64; out is still rotated, and without the mean ---
bool MlaCodesCover(const AttentionParams& params, const CodePlanes& planes);
CudaStatus RunMlaCodes(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                       const CodePlanes& planes);
// Turns it back.
CudaStatus RunUnrotate(const CudaExec& exec, const CudaBatch& batch, const AttentionParams& params, const CodePlanes& planes);
// --- attention_mla_code_stream_sm90.cu: of those, up to 16 heads and one token a sequence; all of the output ---
bool MlaCodeStreamCovers(const CudaBatch& batch, const AttentionSchedule& schedule, const CodePlanes& planes);
CudaStatus RunMlaCodeStream(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                            const CodePlanes& planes);

// --- attention_mla_six_stream_sm90.cu: of those, INT6 ---
bool MlaSixStreamCovers(const CudaBatch& batch, const AttentionSchedule& schedule, const CodePlanes& planes);
CudaStatus RunMlaSixStream(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                           const CodePlanes& planes);

#ifdef __CUDACC__

__device__ __forceinline__ bool HasIntegerKeys(const CodePlanes& planes) {
  return planes.key.code != KvCode::kE4M3 && planes.key.code != KvCode::kBF16;
}

// The larger one; no number if either is none.
__device__ __forceinline__ float MaxOrNan(float a, float b) {
  float largest;
  asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(largest) : "f"(a), "f"(b));
  return largest;
}

struct CodedQueryScale {
  float scale;
  float inverse;
};
// From the largest magnitude among each lane's values, a NaN if there is one: QueryScale.
__device__ __forceinline__ CodedQueryScale QueryScaleOfWarp(float largest) {
  const bool finite = __all_sync(0xffffffffu, largest <= FLT_MAX);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  if (!finite) return {CUDART_NAN_F, CUDART_NAN_F};
  if (largest < kKvSmallest) return {0.0f, 0.0f};
  const float scale = __fdiv_rn(largest, 127.0f);
  return {scale, __fdiv_rn(1.0f, scale)};
}

#endif

}  // namespace cachalot
