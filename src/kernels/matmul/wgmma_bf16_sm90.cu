// The wgmma kernel for BF16 weights.
#include "kernels/matmul/matmul_wgmma.cuh"

namespace cachalot {

CudaStatus LaunchWgmmaBF16(const CudaExec& exec, const MatmulProblem& problem, const StreamPlan& plan) {
  return LaunchWgmmaOf<__nv_bfloat16>(exec, problem, plan);
}

}  // namespace cachalot
