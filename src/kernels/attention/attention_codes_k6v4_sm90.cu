// --kv-type k6v4 (attention_codes_kernels.cuh).
#include "kernels/attention/attention_codes_formats.cuh"
#include "kernels/attention/attention_codes_kernels.cuh"

namespace cachalot {

CudaStatus AttendK6V4(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                      const CodePlanes& planes, bool prefill) {
  return LaunchFormat<KvCode::kInt6, KvCode::kInt4>(exec, batch, schedule, params, planes, prefill);
}

}  // namespace cachalot
