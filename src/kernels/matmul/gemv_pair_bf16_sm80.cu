// Experts beside a dense matmul, BF16 weights.
#include "kernels/matmul/gemv_pair.cuh"

namespace cachalot {

template CudaStatus LaunchGemvPair<DType::kBF16>(const CudaExec&, const GemvPair&);

}  // namespace cachalot
