// The decode kernel for FP8 weights.
#include "kernels/matmul/gemv.cuh"

namespace cachalot {

template CudaStatus LaunchGemv<DType::kFP8E4M3>(const CudaExec&, const MatmulProblem&, const GemvShape&, int64_t);

}  // namespace cachalot
