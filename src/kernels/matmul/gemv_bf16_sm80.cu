// The decode kernel for BF16 weights.
#include "kernels/matmul/gemv.cuh"

namespace cachalot {

template CudaStatus LaunchGemv<DType::kBF16>(const CudaExec&, const MatmulProblem&, const GemvShape&, int64_t);

}  // namespace cachalot
