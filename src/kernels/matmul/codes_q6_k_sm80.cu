// The stream and the decode kernel for Q6_K weights.
#include "kernels/matmul/gemv.cuh"
#include "kernels/matmul/matmul_stream.cuh"

namespace cachalot {

template CudaStatus LaunchStream<DType::kQ6_K>(const CudaExec&, const MatmulProblem&, const StreamPlan&);
template CudaStatus LaunchGemv<DType::kQ6_K>(const CudaExec&, const MatmulProblem&, const GemvShape&, int64_t);

}  // namespace cachalot
