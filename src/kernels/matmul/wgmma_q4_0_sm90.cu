// The wgmma kernel for Q4_0 weights.
#include "kernels/matmul/matmul_wgmma_codes.cuh"

namespace cachalot {

CudaStatus LaunchWgmmaQ4(const CudaExec& exec, const MatmulProblem& problem, const StreamPlan& plan) {
  return LaunchCodesOf<DType::kQ4_0>(exec, problem, plan);
}

}  // namespace cachalot
