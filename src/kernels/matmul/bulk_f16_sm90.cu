// The kernel of bulk copies for F16 weights.
#include "kernels/matmul/matmul_bulk.cuh"

namespace cachalot {

CudaStatus LaunchBulkF16(const CudaExec& exec, const MatmulProblem& problem, const BulkCut& cut) {
  return LaunchBulkOf<__half>(exec, problem, cut);
}

}  // namespace cachalot
