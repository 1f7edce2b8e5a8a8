// The wgmma kernel for FP8 weights.
#include "kernels/matmul/matmul_wgmma_codes.cuh"

namespace cachalot {

CudaStatus LaunchWgmmaFp8(const CudaExec& exec, const MatmulProblem& problem, const StreamPlan& plan) {
  return LaunchCodesOf<DType::kFP8E4M3>(exec, problem, plan);
}

}  // namespace cachalot
