// The matmuls' kernels as their dispatch (matmul_sm80.cu) sees them: for the matmuls' own sources.
#pragma once

#include "device/cuda/cuda_exec.h"
#include "kernels/matmul/matmul_cuda.h"

namespace cachalot {

struct MatmulProblem;
struct GemvShape;

// --- matmul_problem_sm80.cu: calls as problems ---
MatmulProblem ProblemOf(const CudaMatrix& weight);
MatmulProblem ProblemOf(const CudaMatmulParams& params);
MatmulProblem ProblemOf(const CudaMoeMatmulParams& params);
CudaStatus CheckWeight(const CudaMatrix& w, int64_t rows, int64_t groups, const char* op);
CudaStatus CheckMatmul(const CudaMatmulParams& params);
CudaStatus CheckMoeMatmul(const CudaMoeMatmulParams& params);
bool WantsF32(const CudaExec& exec, DType dtype);
// Whether rows of x can be read 16 bytes at a time (and end with a whole 16 bytes).
bool HasAlignedX(const MatmulProblem& problem);
// SwiGLU has nothing to add to, and a distance from gates to ups that an int holds.
bool GluFits(const MatmulProblem& problem);
// The decode kernel's cut of a problem (blocks 0: another kernel takes it), and whether it takes it as it is.
GemvShape FindGemvShape(const CudaExec& exec, DType dtype, const MatmulProblem& problem, int64_t pairs);
bool DecodeFuses(const CudaExec& exec, DType dtype, const MatmulProblem& problem, int64_t pairs);

// --- matmul_f32_sm80.cu ---
CudaStatus LaunchF32Matmul(const CudaExec& exec, DType dtype, const MatmulProblem& problem);

// --- matmul_convert_sm80.cu: x to 16 bits in the order in which the stream kernel wants it ---
enum class StreamOrder : int32_t {
  kPlain,   // as they come
  kNibble,  // 4-bit weights and rows of codes: of a block of 32, values 4q .. and 16 + 4q .. side by side, of each four the even ones first
};
constexpr StreamOrder StreamOrderOf(DType dtype) {
  return dtype == DType::kQ4_0 || dtype == DType::kQ4_1 || IsCodeRow(dtype) ? StreamOrder::kNibble : StreamOrder::kPlain;
}
// Values of a converted row: k padded to 128, the padding zero.
constexpr int64_t StreamRowValues(int64_t k) { return (k + 127) / 128 * 128; }
// Row r of group g lies at out + (r * num_groups + g) * StreamRowValues(k).
struct ConvertXParams {
  const float* x = nullptr;
  int64_t x_stride = 0;
  int64_t x_group_stride = 0;
  int64_t num_rows = 0;
  int num_groups = 1;
  int64_t k = 0;
  bool aligned = false;
  bool half = true;  // F16, else BF16
  StreamOrder order = StreamOrder::kPlain;
  bool fragments = false;  // F16: as wgmma's B in memory, so that A in registers can be what UnpackBlock leaves in a lane
  void* out = nullptr;
};
CudaStatus ConvertX(const CudaExec& exec, const ConvertXParams& params);
// y = bias, or y += bias.
CudaStatus AddBias(const CudaExec& exec, const CudaMatmulParams& params);

// --- matmul_stream.cuh: tensor cores, W streamed once; one instantiation a format ---
struct StreamPlan {
  int rows = 128;         // rows of W of a tile; wgmma of 16-bit weights: up to 128 or, of 64 columns and more, up to 256
  int columns = 8;        // rows of x of a tile: 8, 16, 32, 64 or 128; wgmma: from 16
  bool x_f32 = false;     // x as the caller has it (aligned); else converted
  int num_ranges = 0;     // pieces that the work is cut into; 0: as many as blocks, fewer for little work
  bool whole_tiles = false;  // a range ends where a tile of W ends
  float* partials = nullptr;      // StreamPartialBytes
  uint32_t* counters = nullptr;   // [ranges * kStreamCounters], zero; left zero
};
constexpr int kStreamRows = 128;  // rows of W of a tile
constexpr int kStreamCounters = 8;  // of a range: one for each warp
// Values of k that a tile of W is streamed by.
constexpr int StreamChunk(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16 ? 64 : 128; }
constexpr int StreamBlocks(int columns, int num_sms) { return columns <= 64 ? 2 * num_sms : num_sms; }
// Whichever kernel and tile: all blocks of an SM together have at most 256 rows under way, of two tiles each.
constexpr int64_t StreamPartialBytes(int num_sms, int columns) {
  return int64_t{num_sms} * 2 * 256 * columns * static_cast<int64_t>(sizeof(float));
}
template <DType kType>
CudaStatus LaunchStream(const CudaExec& exec, const MatmulProblem& problem, const StreamPlan& plan);

// --- gemv.cuh: few rows of x, no workspace; one instantiation a format. `slots`: groups, or pairs of experts ---
template <DType kType>
CudaStatus LaunchGemv(const CudaExec& exec, const MatmulProblem& problem, const GemvShape& shape, int64_t slots);

// --- gemv_pair.cuh: two of them in one launch ---
struct GemvPair;
template <DType kType>
CudaStatus LaunchGemvPair(const CudaExec& exec, const GemvPair& pair);

// --- matmul_wgmma.cuh: the stream kernel's work for 16-bit weights on sm_90, x converted; as many ranges as SMs ---
CudaStatus LaunchWgmmaF16(const CudaExec& exec, const MatmulProblem& problem, const StreamPlan& plan);
CudaStatus LaunchWgmmaBF16(const CudaExec& exec, const MatmulProblem& problem, const StreamPlan& plan);
// --- matmul_wgmma_codes.cuh: for codes, x converted to `fragments`; ranges as the stream kernel ---
CudaStatus LaunchWgmmaFp8(const CudaExec& exec, const MatmulProblem& problem, const StreamPlan& plan);
CudaStatus LaunchWgmmaQ8(const CudaExec& exec, const MatmulProblem& problem, const StreamPlan& plan);
CudaStatus LaunchWgmmaQ4(const CudaExec& exec, const MatmulProblem& problem, const StreamPlan& plan);

// --- matmul_expand_sm80.cu: rows [first, first + rows) of codes to F16, StreamRowValues(k) a row ---
CudaStatus ExpandRows(const CudaExec& exec, const CudaMatrix& w, int64_t first, int64_t rows, void* out);

// --- matmul_blas_sm80.cu: cuBLASLt, 16-bit weights ---
inline constexpr int64_t kBlasWorkspaceBytes = int64_t{32} << 20;
struct BlasMatmul {
  DType dtype = DType::kBF16;
  int64_t m = 0, n = 0, k = 0;
  const void* x = nullptr;  // 16-bit, row stride x_stride values
  int64_t x_stride = 0;
  const void* w = nullptr;
  int64_t w_stride = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  bool accumulate = false;
  std::byte* workspace = nullptr;  // kBlasWorkspaceBytes
};
CudaStatus RunBlasMatmul(const CudaExec& exec, const BlasMatmul& matmul);
// The library's handle and the algorithms chosen so far, of one stream (CudaExec::matmul_plans). Not to be made during capture.
struct BlasPlans;
CudaStatus MakeBlasPlans(BlasPlans** out);
void ReleaseBlasPlans(BlasPlans* plans);  // before the device is reset; the device may be lost

}  // namespace cachalot
