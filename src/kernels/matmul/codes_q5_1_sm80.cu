// The stream and the decode kernel for Q5_1 weights.
#include "kernels/matmul/gemv.cuh"
#include "kernels/matmul/matmul_stream.cuh"

namespace cachalot {

template CudaStatus LaunchStream<DType::kQ5_1>(const CudaExec&, const MatmulProblem&, const StreamPlan&);
template CudaStatus LaunchGemv<DType::kQ5_1>(const CudaExec&, const MatmulProblem&, const GemvShape&, int64_t);

}  // namespace cachalot
