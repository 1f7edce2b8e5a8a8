// The stream kernel for Q4_0 weights.
#include "kernels/matmul/matmul_stream.cuh"

namespace cachalot {

template CudaStatus LaunchStream<DType::kQ4_0>(const CudaExec&, const MatmulProblem&, const StreamPlan&);

}  // namespace cachalot
