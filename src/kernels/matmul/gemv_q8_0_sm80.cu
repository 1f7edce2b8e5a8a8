// The decode kernel for Q8_0 weights.
#include "kernels/matmul/gemv.cuh"

namespace cachalot {

template CudaStatus LaunchGemv<DType::kQ8_0>(const CudaExec&, const MatmulProblem&, const GemvShape&, int64_t);

}  // namespace cachalot
