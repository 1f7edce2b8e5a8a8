// The formats that have kernels of their own; each is a file.
#pragma once

#include "kernels/attention/attention_codes.cuh"

namespace cachalot {

using AttendFormat = CudaStatus(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                                const CodePlanes& planes, bool prefill);
AttendFormat AttendK8V8, AttendK6V8, AttendFP8, AttendK6V4, AttendK4V4;

}  // namespace cachalot
