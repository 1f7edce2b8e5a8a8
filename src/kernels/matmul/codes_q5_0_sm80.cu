// The stream and the decode kernel for Q5_0 weights.
#include "kernels/matmul/gemv.cuh"
#include "kernels/matmul/matmul_stream.cuh"

namespace cachalot {

template CudaStatus LaunchStream<DType::kQ5_0>(const CudaExec&, const MatmulProblem&, const StreamPlan&);
template CudaStatus LaunchGemv<DType::kQ5_0>(const CudaExec&, const MatmulProblem&, const GemvShape&, int64_t);

}  // namespace cachalot
