// The wgmma kernel for F16 weights.
#include "kernels/matmul/matmul_wgmma.cuh"

namespace cachalot {

CudaStatus LaunchWgmmaF16(const CudaExec& exec, const MatmulProblem& problem, const StreamPlan& plan) {
  return LaunchWgmmaOf<__half>(exec, problem, plan);
}

}  // namespace cachalot
