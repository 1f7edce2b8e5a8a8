// The stream and the decode kernel for IQ4_NL weights.
#include "kernels/matmul/gemv.cuh"
#include "kernels/matmul/matmul_stream.cuh"

namespace cachalot {

template CudaStatus LaunchStream<DType::kIQ4_NL>(const CudaExec&, const MatmulProblem&, const StreamPlan&);
template CudaStatus LaunchGemv<DType::kIQ4_NL>(const CudaExec&, const MatmulProblem&, const GemvShape&, int64_t);

}  // namespace cachalot
