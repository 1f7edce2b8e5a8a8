// Experts beside a dense matmul, F16 weights.
#include "kernels/matmul/gemv_pair.cuh"

namespace cachalot {

template CudaStatus LaunchGemvPair<DType::kF16>(const CudaExec&, const GemvPair&);

}  // namespace cachalot
