// The stream kernel for F16 weights.
#include "kernels/matmul/matmul_stream.cuh"

namespace cachalot {

template CudaStatus LaunchStream<DType::kF16>(const CudaExec&, const MatmulProblem&, const StreamPlan&);

}  // namespace cachalot
