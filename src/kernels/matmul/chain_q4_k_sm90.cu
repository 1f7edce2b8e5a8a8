// Matmuls that follow each other, Q4_K weights.
#include "kernels/matmul/chain.cuh"

namespace cachalot {

template CudaStatus LaunchChain<DType::kQ4_K>(const CudaExec&, const ChainProblem&);

}  // namespace cachalot
