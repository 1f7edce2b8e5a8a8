// --kv-type k6v8 (attention_codes_kernels.cuh).
#include "kernels/attention/attention_codes_formats.cuh"
#include "kernels/attention/attention_codes_kernels.cuh"

namespace cachalot {

CudaStatus AttendK6V8(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                      const CodePlanes& planes, bool prefill) {
  return LaunchFormat<KvCode::kInt6, KvCode::kE4M3>(exec, batch, schedule, params, planes, prefill);
}

}  // namespace cachalot
