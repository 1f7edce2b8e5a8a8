// The matmuls' calls as problems, what is wrong with them, and whether the decode kernel takes them with what they ask for beside.
#include <algorithm>
#include <climits>

#include "device/cuda/cuda_card.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/norm_sum.cuh"
#include "kernels/matmul/gemv_shape.h"
#include "kernels/matmul/matmul_launch.h"
#include "kernels/matmul/matmul_problem.cuh"

namespace cachalot {
namespace {

void SetFusion(const CudaFusion& fusion, MatmulProblem* p) {
  p->norm_weight = fusion.norm_weight;
  p->norm_eps = fusion.norm_eps;
  p->glu_rows = fusion.glu ? p->n / 2 : 0;
}

}  // namespace

bool HasAlignedX(const MatmulProblem& p) {
  return reinterpret_cast<uintptr_t>(p.x) % 16 == 0 && p.x_stride % 4 == 0 && p.x_group_stride % 4 == 0 && p.k % 4 == 0;
}

bool WantsF32(const CudaExec& exec, DType dtype) { return exec.math == CudaMath::kF32 || dtype == DType::kF32; }

CudaStatus CheckWeight(const CudaMatrix& w, int64_t rows, int64_t groups, const char* op) {
  const int64_t row_bytes = CudaRowsOf(w.dtype, w.k).row_bytes;
  const int block = CudaBlockOf(w.dtype);
  if (row_bytes == 0) {
    return CudaFail(CudaFault::kUnsupported, "%s: no kernel reads weights of type number %d", op, static_cast<int>(w.dtype));
  }
  if (w.k <= 0 || w.k % block != 0 || row_bytes > INT_MAX || w.n > INT_MAX / 2 || rows > INT_MAX / 2 || groups > 65535 ||
      (w.dtype == DType::kFP8E4M3 && w.block_scale_rows != 128 && w.block_scale_rows != 1)) {
    return CudaFail(CudaFault::kInvalid, "%s: %lld groups, m %lld, n %lld, k %lld, scales of %lld rows", op,
                    static_cast<long long>(groups), static_cast<long long>(rows), static_cast<long long>(w.n),
                    static_cast<long long>(w.k), static_cast<long long>(w.block_scale_rows));
  }
  return nullptr;
}

bool GluFits(const MatmulProblem& p) {
  return p.bias == nullptr && !p.accumulate && p.n % 2 == 0 && p.glu_rows * p.layout.row_bytes <= INT_MAX;
}

// FP8, whose rows have half as many bytes: a DeepSeek-V3 step of one row gains 1 % over 14336 (4 layers, 738.3 against 729.6 tokens/s, H200).
constexpr int kGemvMaxFp8K = 18432;

GemvShape FindGemvShape(const CudaExec& exec, DType dtype, const MatmulProblem& p, int64_t pairs) {
  const bool experts = p.expert_begin != nullptr, glu = p.glu_rows > 0;
  const CudaTune& tune = CurrentTune();
  const int most_k = IsCodeRow(dtype) ? Tuned(tune.gemv_code_k, kGemvMaxCodeK)
                     : experts        ? Tuned(tune.gemv_expert_k, kGemvMaxExpertK)
                                      : Tuned(tune.gemv_dense_k, dtype == DType::kFP8E4M3 ? kGemvMaxFp8K : kGemvMaxDenseK);
  const int most_rows = Tuned(tune.gemv_rows, kGemvRows);
  const bool few = (experts ? pairs <= Tuned(tune.gemv_pairs, kGemvPairs) : p.m <= most_rows) && p.k <= most_k;
  GemvShape none;
  none.blocks = 0;
  if (!few || exec.deterministic || WantsF32(exec, dtype)) return none;
  const GemvShape shape = ShapeGemv(dtype, experts ? pairs : p.num_groups, glu ? p.glu_rows : p.n, p.k,
                                    std::min(p.m, most_rows), exec.num_sms, glu,
                                    GemvHasManyWarps(dtype) && tune.gemv_code_warps == kGemvManyWarps ? kGemvManyWarps : kGemvWarps);
  const int64_t most_shared = std::min(kGemvMaxSharedBytes, CurrentCard().shared_bytes - kGemvOwnSharedBytes);
  return GemvSharedBytes(dtype, shape) <= most_shared ? shape : none;
}

bool DecodeFuses(const CudaExec& exec, DType dtype, const MatmulProblem& p, int64_t pairs) {
  const uint32_t allowed = CurrentTune().fuse;
  const bool norm = p.norm_weight != nullptr, glu = p.glu_rows > 0;
  if ((norm && (allowed & CudaTune::kFuseNorm) == 0) || (glu && ((allowed & CudaTune::kFuseGlu) == 0 || !GluFits(p)))) return false;
  if (FindGemvShape(exec, dtype, p, pairs).blocks == 0) return false;
  return !norm || (p.k >= kNormLeastDim && HasAlignedX(p) && reinterpret_cast<uintptr_t>(p.norm_weight) % 16 == 0);
}

MatmulProblem ProblemOf(const CudaMatrix& weight) {
  MatmulProblem p;
  p.n = static_cast<int>(weight.n);
  p.k = static_cast<int>(weight.k);
  p.layout = CudaRowsOf(weight.dtype, weight.k);
  p.w = weight.data;
  p.block_scales = weight.block_scales;
  p.block_scale_rows = static_cast<int>(weight.block_scale_rows);
  return p;
}

MatmulProblem ProblemOf(const CudaMatmulParams& params) {
  MatmulProblem p = ProblemOf(params.weight);
  p.x = params.x;
  p.x_stride = params.x_stride;
  p.x_half = params.x_half;
  p.m = static_cast<int>(params.m);
  p.y = params.y;
  p.y_stride = params.y_stride;
  p.bias = params.bias;
  p.accumulate = params.accumulate;
  p.y_half = params.y_half;
  SetFusion(params.fusion, &p);
  return p;
}

CudaStatus CheckMatmul(const CudaMatmulParams& params) { return CheckWeight(params.weight, params.m, 1, "matmul"); }

MatmulProblem ProblemOf(const CudaMoeMatmulParams& params) {
  MatmulProblem p = ProblemOf(params.weight);
  p.w = nullptr;
  p.block_scales = nullptr;
  p.x = params.x;
  p.x_stride = params.x_stride;
  p.x_half = params.x_half;
  p.x_rows = params.x_rows;
  p.m = static_cast<int>(params.max_pairs / params.top_k);
  p.num_groups = params.num_experts;
  p.y = params.y;
  p.y_stride = params.y_stride;
  p.expert_begin = params.expert_begin;
  p.expert_data = params.expert_data;
  p.expert_block_scales = params.expert_block_scales;
  p.y_half = params.y_half;
  SetFusion(params.fusion, &p);
  return p;
}

CudaStatus CheckMoeMatmul(const CudaMoeMatmulParams& params) {
  if (CudaStatus failure = CheckWeight(params.weight, params.max_pairs, params.num_experts, "moe_matmul")) return failure;
  if (params.num_experts <= 0 || params.num_experts > 4096 || params.top_k <= 0 || params.max_pairs % params.top_k != 0) {
    return CudaFail(CudaFault::kInvalid, "moe_matmul: at most %lld pairs, top %d of %d experts",
                    static_cast<long long>(params.max_pairs), params.top_k, params.num_experts);
  }
  return nullptr;
}

}  // namespace cachalot
