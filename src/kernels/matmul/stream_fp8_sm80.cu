// The stream kernel for FP8E4M3 weights.
#include "kernels/matmul/matmul_stream.cuh"

namespace cachalot {

template CudaStatus LaunchStream<DType::kFP8E4M3>(const CudaExec&, const MatmulProblem&, const StreamPlan&);

}  // namespace cachalot
