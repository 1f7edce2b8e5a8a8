// The wgmma kernel for Q8_0 weights.
#include "kernels/matmul/matmul_wgmma_codes.cuh"

namespace cachalot {

CudaStatus LaunchWgmmaQ8(const CudaExec& exec, const MatmulProblem& problem, const StreamPlan& plan) {
  return LaunchCodesOf<DType::kQ8_0>(exec, problem, plan);
}

}  // namespace cachalot
