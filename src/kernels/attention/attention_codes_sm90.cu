// Which format's kernels attend a quantised cache with heads of 64 or 128.
#include "kernels/attention/attention_codes_formats.cuh"

namespace cachalot {
namespace {

struct FormatRow {
  KvCode key;
  KvCode value;
  AttendFormat* attend;
};
constexpr FormatRow kFormats[] = {
    {KvCode::kInt8, KvCode::kE4M3, &AttendK8V8}, {KvCode::kInt6, KvCode::kE4M3, &AttendK6V8}, {KvCode::kE4M3, KvCode::kE4M3, &AttendFP8},
    {KvCode::kInt6, KvCode::kInt4, &AttendK6V4}, {KvCode::kInt4, KvCode::kInt4, &AttendK4V4},
};

const FormatRow* FindFormat(const CodePlanes& planes) {
  for (const FormatRow& row : kFormats) {
    if (row.key == planes.key.code && row.value == planes.value.code) return &row;
  }
  return nullptr;
}

// A scale for each 32 values of INT4, one for all others.
bool HasUsualGroups(const CodeRows& rows) { return rows.code == KvCode::kInt4 ? rows.group == kKvUnit : rows.groups == 1; }

}  // namespace

bool CodesCover(const AttentionParams& params, const CodePlanes& planes, const AttentionSchedule& schedule) {
  const PagedKv& kv = params.kv;
  const int32_t dim = kv.k_dim;
  // A run of 16 tokens lies in one block, and is copied 16 bytes at a time.
  const bool vectors = kv.block_tokens % 16 == 0 && kv.block_bytes % 16 == 0 && planes.head_bytes % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(kv.data) % 16 == 0;
  return schedule.stream_blocks > 0 && vectors && (dim == 64 || dim == 128) && kv.v_dim == dim && !planes.value_in_key && planes.exact_dim == 0 &&
         (planes.rotation == 1 || planes.rotation == dim) && params.scale > 0 && HasUsualGroups(planes.key) && HasUsualGroups(planes.value) &&
         FindFormat(planes) != nullptr;
}

CudaStatus RunCodesDecode(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                          const CodePlanes& planes) {
  return FindFormat(planes)->attend(exec, batch, schedule, params, planes, false);
}

CudaStatus RunCodesPrefill(const CudaExec& exec, const CudaBatch& batch, const AttentionSchedule& schedule, const AttentionParams& params,
                           const CodePlanes& planes) {
  return FindFormat(planes)->attend(exec, batch, schedule, params, planes, true);
}

}  // namespace cachalot
