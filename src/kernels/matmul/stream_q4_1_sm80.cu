// The stream kernel for Q4_1 weights.
#include "kernels/matmul/matmul_stream.cuh"

namespace cachalot {

template CudaStatus LaunchStream<DType::kQ4_1>(const CudaExec&, const MatmulProblem&, const StreamPlan&);

}  // namespace cachalot
