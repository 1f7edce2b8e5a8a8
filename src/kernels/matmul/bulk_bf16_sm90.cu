// The kernel of bulk copies for BF16 weights.
#include "kernels/matmul/matmul_bulk.cuh"

namespace cachalot {

CudaStatus LaunchBulkBF16(const CudaExec& exec, const MatmulProblem& problem, const BulkCut& cut) {
  return LaunchBulkOf<__nv_bfloat16>(exec, problem, cut);
}

}  // namespace cachalot
