// Matmuls that follow each other, F16 weights.
#include "kernels/matmul/chain.cuh"

namespace cachalot {

template CudaStatus LaunchChain<DType::kF16>(const CudaExec&, const ChainProblem&);

}  // namespace cachalot
