// The decode kernel for Q4_0 weights.
#include "kernels/matmul/gemv.cuh"

namespace cachalot {

template CudaStatus LaunchGemv<DType::kQ4_0>(const CudaExec&, const MatmulProblem&, const GemvShape&, int64_t);

}  // namespace cachalot
