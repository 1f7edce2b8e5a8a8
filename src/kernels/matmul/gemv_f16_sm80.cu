// The decode kernel for F16 weights.
#include "kernels/matmul/gemv.cuh"

namespace cachalot {

template CudaStatus LaunchGemv<DType::kF16>(const CudaExec&, const MatmulProblem&, const GemvShape&, int64_t);

}  // namespace cachalot
