// The stream kernel for BF16 weights.
#include "kernels/matmul/matmul_stream.cuh"

namespace cachalot {

template CudaStatus LaunchStream<DType::kBF16>(const CudaExec&, const MatmulProblem&, const StreamPlan&);

}  // namespace cachalot
