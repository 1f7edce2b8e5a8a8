// Experts beside a dense matmul, Q8_0 weights.
#include "kernels/matmul/gemv_pair.cuh"

namespace cachalot {

template CudaStatus LaunchGemvPair<DType::kQ8_0>(const CudaExec&, const GemvPair&);

}  // namespace cachalot
