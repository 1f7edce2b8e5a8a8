// The stream kernel for Q8_0 weights.
#include "kernels/matmul/matmul_stream.cuh"

namespace cachalot {

template CudaStatus LaunchStream<DType::kQ8_0>(const CudaExec&, const MatmulProblem&, const StreamPlan&);

}  // namespace cachalot
