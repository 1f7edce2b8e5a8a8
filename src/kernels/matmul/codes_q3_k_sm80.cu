// The stream and the decode kernel for Q3_K weights.
#include "kernels/matmul/gemv.cuh"
#include "kernels/matmul/matmul_stream.cuh"

namespace cachalot {

template CudaStatus LaunchStream<DType::kQ3_K>(const CudaExec&, const MatmulProblem&, const StreamPlan&);
template CudaStatus LaunchGemv<DType::kQ3_K>(const CudaExec&, const MatmulProblem&, const GemvShape&, int64_t);

}  // namespace cachalot
